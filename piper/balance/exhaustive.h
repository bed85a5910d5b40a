// The best that any placement with equal numbers on every rank reaches, by trying them all: the
// oracle of the tests and of `piper bench balance`.
#pragma once

#include <piper/balance/rank_load.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace piper::balance {

// The least load of the busiest rank, by trying every assignment (12 experts on 4 ranks: 15,400 of
// them up to the order of ranks).
inline int64_t least_busiest(const Loads& loads, size_t num_ranks) {
  const size_t each = loads.size() / num_ranks;
  std::vector<int64_t> sums(num_ranks);
  std::vector<size_t> taken(num_ranks);
  int64_t best = std::numeric_limits<int64_t>::max();
  const auto place = [&](const auto& self, size_t expert) -> void {
    if (expert == loads.size()) {
      best = std::min(best, *std::max_element(sums.begin(), sums.end()));
      return;
    }
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const bool is_empty = taken[rank] == 0;
      if (taken[rank] < each && sums[rank] + loads[expert] < best) {
        ++taken[rank];
        sums[rank] += loads[expert];
        self(self, expert + 1);
        --taken[rank];
        sums[rank] -= loads[expert];
      }
      if (is_empty) break;  // all empty ranks are alike
    }
  };
  place(place, 0);
  return best;
}

// Skewed loads, a function of the seed: the same on every machine.
inline Loads drawn_loads(uint64_t seed, size_t num_experts, int64_t most) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  Loads loads(num_experts);
  for (int64_t& load : loads) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const auto part = static_cast<double>(state >> 11) / 9007199254740992.0;
    load = static_cast<int64_t>(part * part * part * static_cast<double>(most));  // skewed
  }
  return loads;
}

}  // namespace piper::balance
