#include <piper/cost/token_spread.h>

#include <algorithm>
#include <cmath>

namespace piper::cost {
namespace {

// C(all - without, k) / C(all, k): none of k different ones is among the `without`.
double none_of(double all, double without, int64_t k) {
  double none = 1;
  for (int64_t i = 0; i < k; ++i) {
    const auto drawn = static_cast<double>(i);
    none *= std::max(0.0, all - without - drawn) / (all - drawn);
  }
  return none;
}

// C(n, k), of few groups.
double choose(int64_t n, int64_t k) {
  if (k < 0 || k > n) return 0;
  double ways = 1;
  for (int64_t i = 0; i < k; ++i) ways *= static_cast<double>(n - i) / static_cast<double>(i + 1);
  return ways;
}

}  // namespace

double chance_on_unit(const model::FeedForward& f, double experts_of_unit) {
  if (!f.is_moe()) return 0;
  const auto experts = static_cast<double>(f.num_experts);
  const double here = std::min(experts_of_unit, experts);
  const int64_t groups = f.num_groups, chosen = f.top_groups;
  if (groups <= 1 || chosen >= groups) return 1 - none_of(experts, here, f.top_k);
  const double group = experts / static_cast<double>(groups);
  const double open = group * static_cast<double>(chosen);  // experts that may be chosen
  const auto whole = static_cast<int64_t>(here / group);
  const double rest = here - static_cast<double>(whole) * group;
  double none = 0;
  for (int64_t j = std::max<int64_t>(0, chosen - (groups - whole)); j <= std::min(whole, chosen);
       ++j) {
    const double of =
        choose(whole, j) * choose(groups - whole, chosen - j) / choose(groups, chosen);
    const double part = whole < groups
                            ? static_cast<double>(chosen - j) / static_cast<double>(groups - whole)
                            : 0;  // chance that the group which lies here in part is chosen
    const double held = group * static_cast<double>(j);
    none += of * (part * none_of(open, held + rest, f.top_k) +
                  (1 - part) * none_of(open, held, f.top_k));
  }
  return 1 - none;
}

DedupRatios expected_spread(const model::FeedForward& f, double members, double node_members,
                            double row_bytes) {
  DedupRatios spread;
  if (!f.is_moe() || members <= 1) return spread;
  const double experts = static_cast<double>(f.num_experts) / members;
  spread.copies = static_cast<double>(f.top_k);
  spread.inside = chance_on_unit(f, experts) * members / spread.copies;
  spread.across =
      chance_on_unit(f, experts * node_members) * members / node_members / spread.copies;
  spread.row_bytes = row_bytes;
  return spread;
}

}  // namespace piper::cost
