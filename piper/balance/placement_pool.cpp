#include <piper/balance/longest_first.h>
#include <piper/balance/placement_pool.h>

#include <algorithm>

namespace piper::balance {

void PlacementPool::plan(const ExpertPlacement& current, const Loads& loads) {
  ExpertPlacement planned = longest_first(current, loads).placement;
  if (std::ranges::find(members_, planned) != members_.end()) return;
  members_.push_front(std::move(planned));
  if (members_.size() > capacity_) members_.pop_back();
}

Rebalanced PlacementPool::choose(const ExpertPlacement& current, const Loads& loads) const {
  Rebalanced best{current, 0};
  double least = imbalance(current, loads);
  for (const ExpertPlacement& member : members_) {
    const double here = imbalance(member, loads);
    const int64_t migrated = num_migrated(moves_between(current, member));
    if (here < least || (here == least && migrated < best.num_swaps)) {
      best = {member, migrated};
      least = here;
    }
  }
  return best;
}

}  // namespace piper::balance
