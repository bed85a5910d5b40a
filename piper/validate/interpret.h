// From a published row to something that can be priced: model, cluster, trainer and strategy.
// Whatever the row leaves open is assumed, and every assumption is named with its value; a row is
// given up only for a field that nothing can stand in for or whose text no rule understands, or for
// a device without facts.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>
#include <piper/validate/measured_row.h>

#include <string>
#include <vector>

namespace piper::validate {

// What a row's value is.
enum class Quantity {
  kStepSeconds,      // "iteration s", "iteration ms"
  kTokensPerSecond,  // of one device
  kModelFlops,       // model FLOP/s of one device, without recomputation
  kHardwareFlops,    // with recomputation
  kMfu,              // part of the dense peak
  kPeakBytes,
};
constexpr bool is_memory(Quantity q) { return q == Quantity::kPeakBytes; }

struct Case {
  model::Model model;
  cluster::Cluster cluster;
  cost::TrainerProfile trainer;
  strategy::Strategy strategy;
  Quantity quantity = Quantity::kStepSeconds;
  double unit_scale =
      1;  // the row's value in base units (s, 1/s, FLOP/s, 1, bytes) = value x unit_scale
  bool counts_all_pairs = false;  // its FLOPs count attention over all pairs, not the causal half
  std::vector<std::string> assumed;  // "vpp 4 (not stated)"
  bool is_moe = false;
  std::string not_priced;  // why; the rest is then not filled in
};

// `trainer` is who prices the row; "": the one that its source names. Throws InvalidInput for a
// name that no profile has.
Case interpret(const MeasuredRow& row, const std::string& trainer = "");

}  // namespace piper::validate
