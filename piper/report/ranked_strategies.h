// What a planner's answer shows: the strategies it ranked, and why others were refused. Read from
// the document that `piper plan --json` prints; further keys of it are ignored.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::report {

struct StrategyRow {
  std::string mesh;  // "pp 2 · ep 2 · dp 2"
  std::string schedule;
  std::string recompute;
  int64_t micro_batch_sequences = 0;
  int64_t num_micro_batches = 0;
  std::optional<double> mfu, step_seconds;
  std::optional<int64_t> peak_bytes;  // of the fullest rank
  std::optional<double> measured_mfu, measured_step_seconds;
  std::optional<int64_t> measured_peak_bytes;
  bool chosen = false;  // the one that was trained
};

struct RejectedFamily {
  std::string family;           // "ep 16"
  std::string constraint;       // what killed it
  std::string smallest_change;  // that would admit it; may be empty
};

struct RankedStrategies {
  std::string model, cluster;
  int64_t num_devices = 0;         // 0 = not stated
  std::vector<std::string> notes;  // how MFU is counted, defaults, why the first won
  std::vector<StrategyRow> rows;   // best first
  std::vector<RejectedFamily> rejected;
};

// Reads the ranked list, or the record of one strategy (strategy/strategy.h) as a list of one.
// Throws InvalidInput with all problems. Required: `strategies`, and of each its `mesh`. An entry's
// `measured` object (same keys as `predicted`) and `chosen` are read when there.
RankedStrategies parse_ranked_strategies(const Json& json, const std::string& source);

// The words of a mesh object, {"pp": 2, "ep": 2, "dp": 2, "edp": 1} -> "pp 2 · ep 2 · dp 2 · edp
// 1".
std::string mesh_words(const Json& mesh);

}  // namespace piper::report
