// From a model, a machine and a number of devices to the strategies worth training with, best
// first, and to the reasons against all the others.
//
//   space.h     which strategies there are (Piper eq. 7-10)
//   search.h    which of them fit in memory (eq. 11) and how fast they are; small worlds by simulation
//   load_ranking.h  the best again under a load that is not balanced, where one is given
//   explain.h   what killed each family that is missing, and the smallest change that would admit it
//
// An answer is never empty: when nothing fits, `nearest` is the strategy that lacks least, and
// `rejected` says what would help.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/exchange_form.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/step_time.h>
#include <piper/model/model.h>
#include <piper/plan/prediction.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

// Axes that the user has decided. Empty: the search decides.
struct FixedAxes {
  std::optional<int64_t> pp, ep, dp, micro_batch_sequences, num_micro_batches;
  std::optional<strategy::PipelineSchedule> schedule;
  std::optional<strategy::Recompute> recompute;
  cost::FixedForm exchange;
  std::optional<strategy::Reduction> reduction;
  strategy::Capacity capacity;  // dropless unless the user lets experts drop
};

// Share of a device's memory that a strategy may plan to use: the rest is for what is not modelled
// (framework, libraries, fragmentation).
inline constexpr double kUsableMemory = 0.9;

struct Request {
  model::Model model;
  cluster::Cluster cluster;
  // 0 = the default, which the answer states.
  int64_t num_devices = 0;
  int64_t sequence = 0;
  int64_t global_batch_sequences = 0;
  std::optional<strategy::Precision> precision;
  FixedAxes fixed;
  // Piper's own space: DP = 1 besides the experts' (PP x EP = devices), PP | L, and EP <= g N_h as
  // a filter.
  bool paper_form = false;
  double usable_memory = kUsableMemory;
  // How many of the best are re-ranked by simulation in worlds of at most 64 ranks; 0 = none.
  int64_t num_simulated = 24;
  // Rank by what happens under a load that is not balanced (load_ranking.h).
  std::optional<cost::LoadDistribution> load;
  cost::Statistic load_statistic = cost::Statistic::kP95;
  int64_t num_load_samples = 16;
  uint64_t load_seed = 0;
};

// A value that the user left open.
struct Default {
  std::string name;  // "sequence"
  std::string value;
  std::string why;
};

// A family of strategies that is not in the answer: one (pp, ep), or all that share a reason.
struct Rejected {
  std::string family;           // "pp 16 x ep 64"
  std::string constraint;       // "stage 0 needs 91.2 GiB of 72.0 GiB"
  std::string equation;         // "eq. 11"
  std::string smallest_change;  // "19.2 GiB more per device"
  int64_t num_strategies = 0;   // priced and found not to fit; 0 where the family holds none
};

struct Planned {
  strategy::Strategy strategy;  // with `predicted` filled in
  Prediction prediction;        // balanced
  std::optional<cost::UnderLoad> under_load;
};

struct Plan {
  std::vector<Planned> strategies;  // best first
  std::optional<Planned> nearest;   // only when nothing fits
  std::vector<Rejected> rejected;
  std::vector<Default> defaults;
  int64_t num_considered = 0;  // strategies priced
  int64_t num_simulated = 0;
  int64_t num_repriced = 0;        // under Request::load
  int64_t memory_limit_bytes = 0;  // per device
  // What the request came to, defaults filled in.
  int64_t num_devices = 0, sequence = 0, global_batch_sequences = 0;
  strategy::Precision precision = strategy::Precision::kFp32;
};

// Throws InvalidInput, one line a problem: more devices than the cluster has, fixed axes that do
// not divide (naming the nearest that do), a precision without figures. Deterministic: equal
// strategies are ordered by peak memory, then by their axes.
Plan make_plan(const Request& request);

}  // namespace piper::plan
