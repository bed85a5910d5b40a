#include <piper/balance/longest_first.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>

namespace piper::balance {

Rebalanced longest_first(const ExpertPlacement& start, const Loads& loads) {
  PIPER_CHECK(start.is_even() && start.has_one_copy() && std::ssize(loads) == start.num_experts(),
              "equal numbers on every rank");
  const auto num_ranks = static_cast<size_t>(start.num_ranks());
  const size_t each = loads.size() / num_ranks;
  std::vector<int32_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return loads[static_cast<size_t>(a)] > loads[static_cast<size_t>(b)];
  });

  std::vector<int64_t> sums(num_ranks);
  std::vector<size_t> taken(num_ranks);
  std::vector<size_t> rank_of(loads.size());
  for (const int32_t expert : order) {
    size_t lightest = static_cast<size_t>(start.rank_of(expert));
    for (size_t rank = 0; rank < num_ranks; ++rank)
      if (taken[rank] < each && (taken[lightest] == each || sums[rank] < sums[lightest]))
        lightest = rank;
    sums[lightest] += loads[static_cast<size_t>(expert)];
    ++taken[lightest];
    rank_of[static_cast<size_t>(expert)] = lightest;
  }

  std::vector<std::vector<int32_t>> held(num_ranks, std::vector<int32_t>(each, -1));
  for (size_t rank = 0; rank < num_ranks; ++rank)
    for (size_t i = 0; i < each; ++i) {
      const int32_t expert = start.held(static_cast<int64_t>(rank))[i];
      if (rank_of[static_cast<size_t>(expert)] == rank) held[rank][i] = expert;
    }
  int64_t migrated = 0;
  for (size_t expert = 0; expert < loads.size(); ++expert) {
    std::vector<int32_t>& on = held[rank_of[expert]];
    if (start.rank_of(static_cast<int64_t>(expert)) == static_cast<int64_t>(rank_of[expert]))
      continue;
    *std::ranges::find(on, -1) = static_cast<int32_t>(expert);
    ++migrated;
  }
  return {ExpertPlacement(std::move(held), start.num_experts()), migrated};
}

}  // namespace piper::balance
