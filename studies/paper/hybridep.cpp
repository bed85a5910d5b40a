#include <piper/base/error.h>
#include <studies/paper/hybridep.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace piper::studies::paper::hybridep {

double all_to_all_seconds(const Layer& layer, double p) {
  return p * layer.data_bytes * (layer.gpus - 1) / layer.gpus / layer.bandwidth;
}

double all_gather_seconds(const Layer& layer, double p) {
  return (1 - p) * layer.expert_bytes * (layer.gpus - 1) / layer.bandwidth;
}

double seconds(const Layer& layer, double p) {
  return std::max(layer.pre_expert_seconds, all_gather_seconds(layer, p)) +
         2 * all_to_all_seconds(layer, p);
}

double best_proportion(const Layer& layer) {
  PIPER_CHECK(layer.gpus > 1 && layer.bandwidth > 0, "a group without a network");
  if (2 * layer.data_bytes >= layer.gpus * layer.expert_bytes) return 0;
  const double hidden =
      layer.bandwidth * layer.pre_expert_seconds / (layer.expert_bytes * (layer.gpus - 1));
  return std::max(0.0, 1 - hidden);
}

int64_t best_domain(const Layer& layer) {
  const auto gpus = static_cast<int64_t>(layer.gpus);
  const auto seconds_of = [&](int64_t domain) {
    // A domain of one gathers nothing: plain expert parallelism, whose p text and table call 1.
    if (domain == 1) return seconds(layer, 1);
    const double p = 1 - static_cast<double>(domain) / layer.gpus;
    return seconds(layer, p);
  };
  int64_t best = 1;
  for (int64_t domain = 2; domain <= gpus; ++domain)
    if (gpus % domain == 0 && seconds_of(domain) <= seconds_of(best)) best = domain;
  return best;
}

std::vector<int64_t> location(const Levels& levels, int64_t gpu) {
  std::vector<int64_t> at(levels.workers.size());
  for (size_t level = at.size(); level-- > 0; gpu /= levels.workers[level])
    at[level] = gpu % levels.workers[level];
  return at;
}

Travel travel(const Levels& levels, int64_t level, int64_t m, int64_t n) {
  const std::vector<int64_t> of_m = location(levels, m), of_n = location(levels, n);
  const auto l = static_cast<size_t>(level);
  if (!std::equal(of_m.begin() + level + 1, of_m.end(), of_n.begin() + level + 1))
    return Travel::kNone;
  // Outer levels meet at their own turn: workers of one parent.
  if (!std::equal(of_m.begin(), of_m.begin() + level, of_n.begin())) return Travel::kNone;
  const int64_t size = levels.domains[l];
  const bool same_domain = of_m[l] / size == of_n[l] / size;
  const bool same_offset = of_m[l] % size == of_n[l] % size;
  if (same_domain && !same_offset) return Travel::kAllGather;
  if (!same_domain && same_offset) return Travel::kAllToAll;
  return Travel::kNone;
}

int64_t num_messages(const Levels& levels, Travel wanted) {
  PIPER_CHECK(levels.workers.size() == levels.domains.size(), "a domain for each level");
  const int64_t gpus = std::accumulate(levels.workers.begin(), levels.workers.end(), int64_t{1},
                                       std::multiplies<>());
  int64_t count = 0;
  for (int64_t level = 0; level < std::ssize(levels.workers); ++level)
    for (int64_t m = 0; m < gpus; ++m)
      for (int64_t n = 0; n < gpus; ++n) count += travel(levels, level, m, n) == wanted;
  return count;
}

}  // namespace piper::studies::paper::hybridep
