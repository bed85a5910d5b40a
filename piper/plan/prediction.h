// What is predicted of one strategy, in the words of every command and file: step time by
// component, memory of the fullest stage, MFU with its formula. The record that reports and runs
// are compared with.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/estimator.h>
#include <piper/cost/mfu.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

struct Prediction {
  double step_seconds = 0;  // simulated where it was, else by the closed form
  std::optional<double> simulated_seconds;
  cost::Estimate estimate;  // memory by the closed form, components as time_of() has them
  double mfu = 0;
  double tokens_per_second = 0;
  double step_flops = 0;
  double peak_flops_per_second = 0;  // of all devices
};

Prediction make_prediction(const model::Model& model, const cluster::Cluster& cluster,
                           const strategy::Strategy& strategy, const cost::Estimate& estimate,
                           std::optional<double> simulated_seconds = std::nullopt);

// Simulated where that is little enough work, as `piper plan` does with its best. `imbalance`: rows
// of the busiest expert rank over the mean.
Prediction predict(cost::Estimator& estimator, const model::Model& model,
                   const cluster::Cluster& cluster, const strategy::Strategy& strategy,
                   double imbalance);

// Keys carry units: mfu, step_seconds, closed_form_seconds, peak_bytes, time {...}, memory {...};
// "method" says which of the two seconds the step's are, "trainer" who is predicted to run it.
// "not_runnable": why this Piper does not run it with the model, "untrainable": why it trains the
// model with no strategy.
Json to_json(const Prediction& prediction, const model::Model& model,
             const strategy::Strategy& strategy, const cost::TrainerProfile& trainer);

// Eq. 12 of the Piper paper. Requires figures of the precision in cluster.compute.
cost::EffectiveMfu effective_mfu(const Prediction& prediction, const cluster::Cluster& cluster,
                                 const strategy::Strategy& strategy);

// The components of a step, in the order in which people read them.
struct StepPart {
  const char* name;
  double seconds;
};
std::vector<StepPart> parts_of(const cost::StepSeconds& time);

// The components of a step that takes so long, simulated: what that is longer than the closed form
// is waiting; what it is shorter was not waited for, by the bubble first, else by all communication
// in proportion. They add up to `seconds`.
cost::StepSeconds time_of(const cost::Estimate& estimate, double seconds);

// What costs most, for people: "compute 61 %, bubble and waiting 12 %".
std::string limits(const cost::StepSeconds& time);

}  // namespace piper::plan
