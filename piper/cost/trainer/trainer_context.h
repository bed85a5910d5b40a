// What every part of the estimator of a trainer reads: the model, the cluster and the trainer that
// it prices, and the cluster's rates.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/rates.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::cost {

// Model, cluster and trainer outlive it.
struct TrainerContext {
  const model::Model& model;
  const cluster::Cluster& cluster;
  const TrainerProfile& trainer;
  strategy::Precision precision;
  int64_t sequence;
  Rates rates;
  double efficiency;  // what seconds of compute are divided by
};

// Seconds of compute over what the prices say: calibrated, and no less than the host takes.
struct ComputeScale {
  double forward = 1, backward = 1;
  double weights = 1;  // gradients of weights alone
};
}  // namespace piper::cost
