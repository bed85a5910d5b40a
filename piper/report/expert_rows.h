// expert_load.json: how many rows every expert of every mixture layer received. Written by `train`,
// read by `report`.
//
//   {"num_steps": 20, "span_ends": [10, 20],
//    "layers": [{"layer": 0, "rows": [512, 498, 530, 508], "over_time": [[300, ...], [212, ...]]}]}
//
// The steps are cut into spans of equal length (the last may be shorter), at most kMostSpans of
// them: Piper's Fig. 9. Layers may have different numbers of experts; dense layers are left out.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::report {

struct LayerRows {
  int64_t layer = 0;
  std::vector<int64_t>
      rows;  // by expert, summed over all ranks, micro-batches and `num_steps` steps
  // Busiest expert / mean; 1 = balanced. 0 when there are no rows.
  double imbalance() const;
  std::vector<std::vector<int64_t>> over_time;  // by span, then by expert; may be empty
};

struct ExpertRows {
  int64_t num_steps = 0;  // over which the rows were summed
  std::vector<LayerRows> layers;
  std::vector<int64_t> span_ends;  // the last step of each span
  static constexpr int64_t kMostSpans = 48;
};

Json to_json(const ExpertRows& rows);
// Throws InvalidInput with all problems; unknown keys are refused.
ExpertRows parse_expert_rows(const Json& json, const std::string& source);

}  // namespace piper::report
