// Which of the best strategies are best when the experts' load is not balanced?
//
// The search prices with a balanced load. Of what fits then, the best kMostRepriced, and for every
// mesh the fastest and the one with the least memory, are priced again (closed form) under samples
// of the load: all under kFewSamples, the best kMostInFull of them under all samples. What does not
// fit by the chosen statistic is left out, the rest is ranked by it. Every strategy sees the same
// samples (hot-rank: of its own ep).
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

inline constexpr size_t kMostRepriced = 32, kMostInFull = 24;
inline constexpr int64_t kFewSamples = 4;

struct LoadRanking {
  std::vector<Candidate> ranked;      // with under_load; fit, best first
  std::optional<Candidate> smallest;  // that does not fit: the one that lacks least
  int64_t num_repriced = 0, num_too_large = 0;
};

// Requires setting.request->load. Throws InvalidInput where the load does not fit the model.
LoadRanking rank_under_load(const Setting& setting, const SearchResult& found);

}  // namespace piper::plan
