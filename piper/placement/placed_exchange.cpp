#include <piper/collective/algorithms.h>
#include <piper/placement/placed_exchange.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <cmath>

namespace piper::placement {

std::optional<double> placed_exchange_seconds(const cluster::Allocation& allocation,
                                              const Slots& slots, std::span<const RankGroup> groups,
                                              const RankSlots& placement, double pair_bytes,
                                              const strategy::Strategy& strategy,
                                              int64_t most_messages) {
  if (strategy::deduplicates(strategy)) return std::nullopt;
  int64_t messages = 0;
  for (const RankGroup& group : groups)
    if (group.axis == Axis::kExpert)
      messages += std::ssize(group.ranks) * (std::ssize(group.ranks) - 1);
  if (messages == 0 || messages > most_messages || pair_bytes < 1) return std::nullopt;
  sim::Placement placed;
  for (const int32_t slot : placement)
    placed.device.push_back(slots.device[static_cast<size_t>(slot)]);
  const collective::Topology topology = sim::topology_of(allocation.machine, placed);
  collective::AllToAllOptions how;
  if (strategy.all_to_all_chunk_bytes > 0) how.chunk = strategy.all_to_all_chunk_bytes;
  const auto bytes = static_cast<int64_t>(std::llround(pair_bytes));
  std::vector<collective::MemberSteps> steps(placement.size());
  for (const RankGroup& group : groups) {
    if (group.axis != Axis::kExpert) continue;
    std::vector<Rank> members;
    for (const int32_t rank : group.ranks) members.emplace_back(rank);
    const collective::Topology among = collective::topology_among(topology, members);
    for (size_t i = 0; i < members.size(); ++i) {
      collective::MemberSteps& own = steps[static_cast<size_t>(group.ranks[i])];
      own = collective::all_to_all(
          strategy.all_to_all, static_cast<int64_t>(i), among,
          [bytes](int64_t, int64_t) { return bytes; }, how);
      for (collective::Step& step : own.steps)
        if (step.peer >= 0) step.peer = group.ranks[static_cast<size_t>(step.peer)];
    }
  }
  return sim::price(steps, sim::fabric_of(allocation.machine, placed));
}

}  // namespace piper::placement
