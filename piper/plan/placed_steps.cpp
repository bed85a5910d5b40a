#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/plan/placed_steps.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace piper::plan {
namespace {

// Members of a group by unit: most and least, and how many units.
struct Spread {
  int64_t least = 0;
  size_t units = 0;
};

Spread spread_of(std::span<const int32_t> unit, const RankGroup& group,
                 const RankSlots& placement) {
  std::map<int32_t, int64_t> members;
  for (const int32_t rank : group.ranks)
    ++members[unit[static_cast<size_t>(placement[static_cast<size_t>(rank)])]];
  Spread spread{.least = std::ssize(group.ranks), .units = members.size()};
  for (const auto& [_, count] : members) spread.least = std::min(spread.least, count);
  return spread;
}

// Of the busiest member, in bytes on a device's share.
double bytes_of(const RankGroup& group, const Spread& spread) {
  if (spread.units <= 1) return 0;
  const auto n = static_cast<double>(group.ranks.size()), least = static_cast<double>(spread.least);
  return group.is_ring ? group.bytes / least : (n - least) * group.bytes;
}

// The places that the search assumes: neighbours on neighbouring devices.
Slots regular(const cluster::Cluster& machine, int32_t num_ranks) {
  Slots slots;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    slots.node.push_back(static_cast<int32_t>(rank / machine.devices_per_node()));
    slots.device.push_back(rank);
  }
  for (size_t level = 0; level + 1 < machine.levels.size(); ++level) {
    std::vector<int32_t>& units = slots.unit.emplace_back();
    for (int32_t rank = 0; rank < num_ranks; ++rank)
      units.push_back(static_cast<int32_t>(rank / machine.devices_of_level(level)));
  }
  return slots;
}

RankSlots in_order(int32_t num_ranks) {
  RankSlots slots(static_cast<size_t>(num_ranks));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

double stretched(const ExposedSeconds& exposed, const BusySeconds& assumed,
                 const BusySeconds& placed) {
  const auto more = [&](double seconds, std::initializer_list<Axis> axes) {
    double before = 0, after = 0;
    for (const Axis axis : axes) {
      before += assumed[static_cast<size_t>(axis)];
      after += placed[static_cast<size_t>(axis)];
    }
    return before > 0 ? seconds * (after / before - 1) : 0;
  };
  return more(exposed.exchange, {Axis::kExperts}) +
         more(exposed.tensor, {Axis::kTensor, Axis::kExpertTensor}) +
         more(exposed.context, {Axis::kContext}) + more(exposed.messages, {Axis::kMessages}) +
         more(exposed.reductions, {Axis::kData, Axis::kExpertData, Axis::kEnds});
}

}  // namespace

ExposedSeconds exposed_of(const stack::StepSeconds& time) {
  return {.exchange = time.exchange,
          .tensor = time.tensor,
          .context = time.context,
          .messages = time.messages,
          .reductions = time.reductions};
}

ExposedSeconds exposed_of(const cost::StepBreakdown& time) {
  return {.exchange = time.exchange, .reductions = time.reductions};
}

BusySeconds busy_seconds(const cluster::Cluster& machine, const Slots& slots,
                         std::span<const RankGroup> groups, const RankSlots& placement) {
  BusySeconds busy{};
  for (const RankGroup& group : groups) {
    const auto others = static_cast<double>(group.ranks.size() - 1);
    double longest =
        (group.is_ring ? group.bytes : others * group.bytes) / cost::device_bandwidth(machine, 0);
    for (size_t b = 0; b < slots.num_boundaries(); ++b)
      longest = std::max(longest, bytes_of(group, spread_of(slots.unit[b], group, placement)) /
                                      cost::device_bandwidth(machine, b + 1));
    double& of_axis = busy[static_cast<size_t>(group.axis)];
    of_axis = std::max(of_axis, longest);
  }
  return busy;
}

PlacedStep place_step(const cluster::Allocation& allocation, const Slots& slots,
                      const model::Model& model, const strategy::Strategy& strategy,
                      const ExposedSeconds& exposed, double predicted_seconds,
                      const PlaceOptions& options) {
  const auto num_ranks = static_cast<int32_t>(strategy.mesh.world());
  PIPER_CHECK(num_ranks <= slots.size(), "more ranks than slots");
  const std::vector<RankGroup> groups = rank_traffic(model, strategy);
  const cluster::Cluster& machine = allocation.machine;
  const RankSlots order = in_order(num_ranks);
  const BusySeconds assumed = busy_seconds(machine, regular(machine, num_ranks), groups, order);
  PlacedStep placed{.placing = place_ranks(slots, groups, num_ranks, options)};
  const auto step = [&](const RankSlots& ranks) {
    return predicted_seconds +
           stretched(exposed, assumed, busy_seconds(machine, slots, groups, ranks));
  };
  placed.given_seconds = step(order);
  placed.seconds = step(placed.placing.ranks);
  // Links that are busy longer in all may still keep nobody waiting.
  if (placed.given_seconds < placed.seconds) {
    placed.placing.ranks = order;
    placed.placing.seconds = placed.placing.given_seconds;
    placed.seconds = placed.given_seconds;
  }
  return placed;
}

}  // namespace piper::plan
