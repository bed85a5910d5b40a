#include <piper/placement/placed_plan.h>

#include <algorithm>

namespace piper::placement {

PlacedPlan rank_on_nodes(cluster::Allocation allocation, const model::Model& model,
                         const std::vector<Placeable>& searched) {
  PlacedPlan plan{.allocation = std::move(allocation), .ranked = {}};
  const Slots slots = slots_of(plan.allocation);
  for (size_t i = 0; i < std::min(searched.size(), kMostPlaced); ++i) {
    const Placeable& one = searched[i];
    plan.ranked.push_back(
        {.strategy = one.strategy,
         .predicted_seconds = one.seconds,
         .step = place_step(plan.allocation, slots, model, one.strategy, one.exposed, one.seconds),
         .searched = i});
  }
  std::ranges::stable_sort(plan.ranked, {}, [](const OnNodes& o) { return o.step.seconds; });
  return plan;
}

}  // namespace piper::placement
