#include <piper/collective/dispatch_combine_counts.h>

#include <algorithm>

namespace piper::collective {
namespace {

// wanted[t][x]: members y of which x has to tell t count(x, y).
using Wanted = std::vector<std::vector<std::vector<int32_t>>>;

Wanted wanted(AllToAll algorithm, const Topology& topology) {
  const int64_t n = num_members(topology);
  Wanted result(static_cast<size_t>(n), std::vector<std::vector<int32_t>>(static_cast<size_t>(n)));
  for (int64_t t = 0; t < n; ++t) {
    const CountsTold told = counts_told(algorithm, t, topology);
    for (int64_t f = 0; f < n; ++f) {
      if (f == t) continue;
      for (const int32_t x : told.to_hear[f]) {
        if (x == t) continue;
        result[t][f].push_back(x);                                    // out: count(f, x)
        if (x != f) result[t][x].push_back(static_cast<int32_t>(f));  // back: count(x, f)
      }
    }
  }
  for (auto& from : result)
    for (std::vector<int32_t>& list : from) {
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  return result;
}

}  // namespace

DispatchCombineCounts::DispatchCombineCounts(AllToAll algorithm, int64_t member,
                                             const Topology& topology) {
  if (!forwards(algorithm)) return;
  Wanted all = wanted(algorithm, topology);
  to_hear_ = all[member];
  for (auto& of : all) to_tell_.push_back(std::move(of[member]));
}

}  // namespace piper::collective
