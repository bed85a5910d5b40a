#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/placement/placement_price.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace piper::placement {
namespace {

// Bytes that all members together send across a boundary; `counts`: the members in each of its
// units.
double crossing_bytes(const RankGroup& group, std::span<const int64_t> counts) {
  if (group.is_ring)
    return counts.size() > 1 ? group.bytes * static_cast<double>(counts.size()) : 0;
  const auto n = static_cast<int64_t>(group.ranks.size());
  int64_t inside = 0;
  for (const int64_t count : counts) inside += count * count;
  return group.bytes * static_cast<double>(n * n - inside);
}

std::vector<int64_t> counts_of(std::span<const int32_t> unit, const RankGroup& group,
                               const RankSlots& placement) {
  std::vector<int32_t> units;
  for (const int32_t rank : group.ranks)
    units.push_back(unit[static_cast<size_t>(placement[static_cast<size_t>(rank)])]);
  std::ranges::sort(units);
  std::vector<int64_t> counts;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i == 0 || units[i] != units[i - 1]) counts.push_back(0);
    ++counts.back();
  }
  return counts;
}

// The fullest units first: most pairs inside, fewest units.
std::vector<int64_t> best_counts(const std::vector<int64_t>& sizes, size_t members) {
  std::vector<int64_t> counts;
  auto left = static_cast<int64_t>(members);
  for (size_t i = 0; left > 0; ++i) {
    counts.push_back(std::min(left, sizes[i]));
    left -= counts.back();
  }
  return counts;
}

}  // namespace

Slots slots_of(const cluster::Allocation& allocation, std::span<const int32_t> nodes) {
  const cluster::Cluster& machine = allocation.machine;
  Slots slots;
  for (const int32_t n : nodes) {
    const cluster::AllocatedNode& node = allocation.nodes[static_cast<size_t>(n)];
    for (int64_t i = 0; i < node.num_slots; ++i) {
      slots.node.push_back(n);
      slots.device.push_back(node.first_device + i);
    }
  }
  slots.inner_seconds = 1 / cost::device_bandwidth(machine, 0);
  for (size_t level = 0; level + 1 < machine.levels.size(); ++level) {
    std::map<int64_t, int32_t> number;
    std::vector<int32_t> units;
    for (const int64_t device : slots.device)
      units.push_back(number
                          .try_emplace(device / machine.devices_of_level(level),
                                       static_cast<int32_t>(number.size()))
                          .first->second);
    slots.unit.push_back(std::move(units));
    const double seconds = 1 / cost::device_bandwidth(machine, level + 1);
    slots.crossing_seconds.push_back(level == 0 ? std::max(0.0, seconds - slots.inner_seconds)
                                                : seconds);
  }
  return slots;
}

Slots slots_of(const cluster::Allocation& allocation) {
  std::vector<int32_t> nodes(allocation.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  return slots_of(allocation, nodes);
}

double PlacedBytes::total(size_t level) const {
  return std::accumulate(by_level[level].begin(), by_level[level].end(), 0.0);
}

double group_seconds(const Slots& slots, const RankGroup& group, const RankSlots& placement) {
  double seconds = group.sent() * slots.inner_seconds;
  for (size_t b = 0; b < slots.num_boundaries(); ++b)
    seconds += slots.crossing_seconds[b] *
               crossing_bytes(group, counts_of(slots.unit[b], group, placement));
  return seconds;
}

PlacementPrice price_placement(const Slots& slots, std::span<const RankGroup> groups,
                               const RankSlots& placement) {
  PlacementPrice price;
  price.bytes.by_level.resize(slots.num_boundaries() + 1);
  for (const RankGroup& group : groups) {
    const auto axis = static_cast<size_t>(group.axis);
    price.seconds += group_seconds(slots, group, placement);
    for (size_t b = 0; b < slots.num_boundaries(); ++b) {
      const double bytes = crossing_bytes(group, counts_of(slots.unit[b], group, placement));
      price.bytes.by_level[b + 1][axis] += bytes;
      if (b == 0) price.bytes.by_level[0][axis] += group.sent() - bytes;
    }
    if (slots.num_boundaries() == 0) price.bytes.by_level[0][axis] += group.sent();
  }
  price.seconds /= static_cast<double>(placement.size());
  return price;
}

std::vector<double> least_group_seconds(const Slots& slots, std::span<const RankGroup> groups) {
  std::vector<std::vector<int64_t>> sizes;  // by boundary, descending
  for (const std::vector<int32_t>& units : slots.unit) {
    std::vector<int64_t> count(static_cast<size_t>(std::ranges::max(units)) + 1);
    for (const int32_t unit : units) ++count[static_cast<size_t>(unit)];
    std::ranges::sort(count, std::greater());
    sizes.push_back(std::move(count));
  }
  std::vector<double> least;
  for (const RankGroup& group : groups) {
    PIPER_CHECK(std::ssize(group.ranks) <= slots.size());
    double seconds = group.sent() * slots.inner_seconds;
    for (size_t b = 0; b < sizes.size(); ++b)
      seconds += slots.crossing_seconds[b] *
                 crossing_bytes(group, best_counts(sizes[b], group.ranks.size()));
    least.push_back(seconds);
  }
  return least;
}

}  // namespace piper::placement
