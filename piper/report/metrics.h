// metrics.jsonl: one JSON object a step and line, written by `train`, read by `report`.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::report {

// Keys are the members' names. Only the step is required; keys that are not known here are ignored.
struct MetricsRow {
  int64_t step = 0;
  std::optional<double> loss;             // mean over the global batch's target tokens, in nats
  std::optional<double> validation_loss;  // of steps after which it was looked at
  std::optional<double> grad_norm;
  std::optional<double> learning_rate;
  std::optional<double> step_seconds;
  std::optional<double> tokens_per_second;
  std::optional<double> mfu;               // share of the peak, 0 to 1
  std::optional<int64_t> peak_bytes;       // of the fullest rank
  std::optional<double> load_imbalance;    // busiest expert's rows / mean, worst layer; >= 1
  std::optional<double> dropped_fraction;  // of all copies of tokens, beyond the experts' capacity
  // Of a run that rebalances: the busiest expert rank's rows / mean, worst layer; and what moved
  // before the step, all ranks together, and for how long the run waited for it.
  std::optional<double> rank_imbalance;
  std::optional<int64_t> migrated_experts, migrated_bytes;
  std::optional<double> rebalance_seconds;
};

Json to_json(const MetricsRow& row);

// Steps ascend in the result: after a resume the later of two rows of one step counts, and rows
// beyond it are dropped. An incomplete last line (a run that was killed) is ignored. A loss of null
// (not finite) reads as absent. Throws InvalidInput naming line and key.
std::vector<MetricsRow> parse_metrics(std::string_view text, const std::string& source);

}  // namespace piper::report
