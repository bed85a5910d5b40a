#include <piper/balance/rank_load.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>

namespace piper::balance {

std::vector<int64_t> rank_loads(const ExpertPlacement& placement, const Loads& loads) {
  PIPER_CHECK(std::ssize(loads) == placement.num_experts(), "one load of every expert");
  std::vector<int64_t> copies(loads.size()), seen(loads.size());
  for (const std::vector<int32_t>& held : placement.held())
    for (const int32_t expert : held) ++copies[static_cast<size_t>(expert)];
  std::vector<int64_t> sums;
  for (const std::vector<int32_t>& held : placement.held()) {
    int64_t sum = 0;
    for (const int32_t expert : held) {
      const auto e = static_cast<size_t>(expert);
      sum += loads[e] / copies[e] + (seen[e]++ < loads[e] % copies[e] ? 1 : 0);
    }
    sums.push_back(sum);
  }
  return sums;
}

int64_t busiest_load(const ExpertPlacement& placement, const Loads& loads) {
  return std::ranges::max(rank_loads(placement, loads));
}

double imbalance(const std::vector<int64_t>& rank_loads) {
  const int64_t total = std::accumulate(rank_loads.begin(), rank_loads.end(), int64_t{0});
  if (total == 0) return 1;
  return static_cast<double>(*std::ranges::max_element(rank_loads)) *
         static_cast<double>(rank_loads.size()) / static_cast<double>(total);
}

double imbalance(const ExpertPlacement& placement, const Loads& loads) {
  return imbalance(rank_loads(placement, loads));
}

double least_imbalance(const Loads& loads, int64_t num_ranks) {
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  if (total == 0) return 1;
  const double mean = static_cast<double>(total) / static_cast<double>(num_ranks);
  return std::max(1.0, static_cast<double>(*std::ranges::max_element(loads)) / mean);
}

}  // namespace piper::balance
