// comparison.json: what was predicted for a run beside what was measured in it. Written by `train`,
// read by `report`.
//
//   {"predicted_step_seconds": 0.31, "measured_step_seconds": 0.33, "predicted_mfu": 0.41,
//   "measured_mfu": 0.39, "measured_step": 37, "num_steps": 60,
//    "time_components": [{"name": "experts", "predicted_seconds": 0.12, "measured_seconds": 0.13}],
//    "ranks": [{"rank": 0, "stage": 0, "predicted_peak_bytes": 91000000, "measured_peak_bytes":
//    90500000,
//               "limit_bytes": 4000000000,
//               "predicted_component_bytes": {"weights": 20000000, "gradients": 20000000, "optimizer":
//               40000000,
//                                        "activations": 10000000, "buffers": 1000000},
//               "measured_component_bytes": {}}]}
//
// All that is measured is of one step, "measured_step" of "num_steps" (the median), and the
// prediction has its routes. "planned_step_seconds" is what the strategy file carries from its
// planner, whose cluster may have been another one; "expected_step_seconds" is the prediction made
// before the run, at the load that the strategy was planned for, in which the busiest expert is
// expected to have "expected_load_imbalance" times the mean; "measured_load_imbalance" is what it
// had in that step. Both are of the layer where it had most. The time components add up to the
// step: a moment in which a rank computes counts as that, in which it communicates and computes
// nothing as communication, and the rest as idle; means over the ranks. "no_prediction": why
// nothing was predicted, in words. "machine_slowdown": what compute took during the run over what
// it took in the profile, where that was measured; "predicted_..." counts it.
//
// Every figure may be absent (not known). `components` are the parts that are live at the peak and
// sum to it.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

struct TimeComponent {
  std::string name;
  std::optional<double> predicted_seconds, measured_seconds;
};

using ByteComponents = std::vector<std::pair<std::string, int64_t>>;  // in the order shown

struct RankComparison {
  int64_t rank = 0;
  std::optional<int64_t> stage;
  std::optional<int64_t> predicted_peak_bytes, measured_peak_bytes, limit_bytes;
  ByteComponents predicted_components, measured_components;
};

struct Comparison {
  std::optional<double> predicted_step_seconds, measured_step_seconds;
  std::optional<double> predicted_mfu, measured_mfu;
  std::optional<double> planned_step_seconds, expected_step_seconds;
  std::optional<double> expected_load_imbalance, measured_load_imbalance;
  std::optional<double> machine_slowdown;
  std::string no_prediction;  // empty where there is one
  std::optional<int64_t> measured_step, num_steps;
  std::vector<TimeComponent> time_components;
  std::vector<RankComparison> ranks;
};

Json to_json(const Comparison& comparison);
// Throws InvalidInput with all problems; unknown keys are refused.
Comparison parse_comparison(const Json& json, const std::string& source);

// What was measured and lies beyond a bound from what was assumed, with the figures: a line each,
// the step first, then its components that moved the step by more than `bound` of it, then memory
// (beyond kMemoryBound) by rank. Empty = nothing.
inline constexpr double kMemoryBound = 0.05;
struct Deviation {
  std::string name, assumed, measured;
  double relative = 0;  // (measured - assumed) / assumed
};
std::vector<Deviation> deviations(const Comparison& comparison, double bound);

// (predicted - measured) / measured; none when either is unknown or nothing was measured.
std::optional<double> relative_error(std::optional<double> predicted,
                                     std::optional<double> measured);

}  // namespace piper::report
