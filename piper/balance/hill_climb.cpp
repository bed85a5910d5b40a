#include <piper/balance/hill_climb.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace piper::balance {

Rebalanced hill_climb(const ExpertPlacement& start, const Loads& loads, int64_t max_iterations) {
  std::vector<std::vector<int32_t>> groups = start.held();
  std::vector<int64_t> sums = rank_loads(start, loads);
  const auto load = [&](int32_t expert) { return loads[static_cast<size_t>(expert)]; };
  int64_t swaps = 0;
  for (int64_t t = 0; t < max_iterations; ++t) {
    int64_t& most = *std::ranges::max_element(sums);
    int64_t& least = *std::ranges::min_element(sums);
    std::vector<int32_t>& full = groups[static_cast<size_t>(&most - sums.data())];
    std::vector<int32_t>& empty = groups[static_cast<size_t>(&least - sums.data())];
    const int64_t difference = most - least;
    int64_t best_gain = 0;
    std::pair<int32_t*, int32_t*> best;
    for (int32_t& one : full)
      for (int32_t& other : empty) {
        const int64_t moved = load(one) - load(other);
        const int64_t gain = difference - std::abs((most - moved) - (least + moved));
        if (gain > best_gain) {
          best_gain = gain;
          best = {&one, &other};
        }
      }
    if (best_gain == 0) break;
    const int64_t moved = load(*best.first) - load(*best.second);
    std::swap(*best.first, *best.second);
    most -= moved;
    least += moved;
    ++swaps;
  }
  return {ExpertPlacement(std::move(groups), start.num_experts()), swaps};
}

}  // namespace piper::balance
