// One published training run: model, parallel degrees, hardware, and what was measured. Read from a
// JSON file of rows ({"rows": [...]}, or an array); see docs/validation.md for the fields.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::validate {

struct MeasuredRow {
  std::string source, model, gpu_type, zero, recompute, precision, unit, grade,
      note;  // "" = not stated
  std::optional<int64_t> layers, hidden, heads, kv_heads, ffn, experts, top_k, moe_ffn,
      shared_experts, vocabulary, sequence, global_batch, micro_batch, gpus, tp, pp, vpp, ep, etp,
      cp, dp;
  std::optional<double> parameters;
  std::optional<double> measured_value;
  // Fit rows: did it run?
  std::string outcome;  // "ran", "oom" or ""
  std::optional<double> allocated_gb;
  bool is_fit_row() const { return !outcome.empty(); }
};

inline bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Every row of the file in its order. A value of the wrong type or out of range is a problem (all
// at once, InvalidInput); fields that are not known are passed over, since sources differ in what
// they add. Numbers may be written as text where a field is text by nature ("zero": 1 or "FSDP").
std::vector<MeasuredRow> parse_rows(const Json& json, const std::string& source);

// The published runs that come with Piper (configs/validation/further_runs.json): of sources that
// no constant was fitted to.
std::vector<MeasuredRow> builtin_rows();

}  // namespace piper::validate
