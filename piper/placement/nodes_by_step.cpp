#include <piper/placement/nodes_by_step.h>
#include <piper/placement/rank_traffic.h>

#include <cmath>
#include <numeric>
#include <utility>

namespace piper::placement {
namespace {

constexpr double kShorter = 1 - 1e-9;

cluster::Allocation restricted(const cluster::Allocation& allocation,
                               const std::vector<int32_t>& nodes) {
  cluster::Allocation part = allocation;
  part.nodes.clear();
  for (const int32_t n : nodes) part.nodes.push_back(allocation.nodes[static_cast<size_t>(n)]);
  return part;
}

}  // namespace

StepChoice choose_nodes_by_step(const cluster::Allocation& allocation, int64_t count,
                                const model::Model& model, const strategy::Strategy& strategy,
                                const ExposedSeconds& exposed, double predicted_seconds) {
  const auto num_ranks = static_cast<int32_t>(strategy.mesh.world());
  const std::vector<RankGroup> groups = rank_traffic(model, strategy);
  const auto step_on = [&](const std::vector<int32_t>& nodes) {
    const cluster::Allocation part = restricted(allocation, nodes);
    const Slots slots = slots_of(part);
    if (slots.size() < num_ranks) return double{INFINITY};
    return place_step(part, slots, model, strategy, exposed, predicted_seconds, kQuickPlacing)
        .seconds;
  };
  StepChoice best{.choice = choose_nodes(allocation, count, groups, num_ranks)};
  best.step_seconds = best.by_bytes_seconds = step_on(best.choice.nodes);
  const auto keep = [&](const std::vector<int32_t>& nodes, double seconds) {
    if (!(seconds < kShorter * best.step_seconds)) return;
    best.step_seconds = seconds;
    best.choice.nodes = nodes;
    best.choice.is_best = false;  // other links are less busy
    best.choice.num_units = units_of(allocation, nodes);
    best.choice.seconds =
        place_ranks(slots_of(restricted(allocation, nodes)), groups, num_ranks, kQuickPlacing)
            .seconds;
  };
  const NodeChoice by_waiting = choose_nodes(
      allocation, count, by_waiting_of(allocation.machine, groups, exposed, num_ranks), num_ranks);
  if (by_waiting.nodes != best.choice.nodes) keep(by_waiting.nodes, step_on(by_waiting.nodes));
  std::vector<int32_t> first(static_cast<size_t>(count));
  std::iota(first.begin(), first.end(), 0);
  best.first_seconds = step_on(first);
  keep(first, best.first_seconds);
  return best;
}

}  // namespace piper::placement
