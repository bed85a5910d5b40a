// What a placement of ranks costs: the time that links are busy with a step's bytes.
//
//   price = 1 / R  x  sum over groups of  ( bytes sent / B_0
//                                          + sum over boundaries b of  bytes that cross b x c_b )        seconds
//
// Boundary 0 is around nodes, 1 around switch groups, 2 around racks, ... A byte that leaves a unit
// crosses its boundary, and those inside of it too. B_l is a device's share of level l
// (cost/exchange_time.h): c_0 = 1 / B_1 - 1 / B_0, since what leaves a node spares its inner links,
// and c_b = 1 / B_(b+1) further out. So the price is the mean over ranks of the seconds that their
// shares of all levels are busy. It is no time of a step: nothing overlaps and nothing waits in it.
//
// In a pair exchange n^2 - sum n_u^2 messages cross a boundary whose units u hold n_u members; in a
// ring one hop leaves each unit when there are several.
#pragma once

#include <piper/cluster/allocation.h>
#include <piper/placement/rank_traffic.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace piper::placement {

// Places for ranks: the slots of some nodes of an allocation, node by node in the order given.
struct Slots {
  std::vector<int32_t> node;               // by slot: index into the allocation's nodes
  std::vector<int64_t> device;             // by slot: of the allocation's machine
  std::vector<std::vector<int32_t>> unit;  // [boundary][slot], numbered without gaps; [0]: nodes
  std::vector<double> crossing_seconds;    // c_b of one byte
  double inner_seconds = 0;                // 1 / B_0
  int32_t size() const { return static_cast<int32_t>(node.size()); }
  size_t num_boundaries() const { return unit.size(); }
};
Slots slots_of(const cluster::Allocation& allocation, std::span<const int32_t> nodes);
Slots slots_of(const cluster::Allocation& allocation);  // all nodes as listed

// By rank: its slot. Each slot is used once at most.
using RankSlots = std::vector<int32_t>;

// Bytes of a step by axis: those that stay inside nodes, then those that cross each boundary.
struct PlacedBytes {
  std::vector<std::array<double, kNumAxes>> by_level;
  double total(size_t level) const;
};

struct PlacementPrice {
  double seconds = 0;
  PlacedBytes bytes;
};
PlacementPrice price_placement(const Slots& slots, std::span<const RankGroup> groups,
                               const RankSlots& placement);

// Seconds of one group whose members' slots these are; not divided by the ranks.
double group_seconds(const Slots& slots, const RankGroup& group, const RankSlots& placement);

// What no placement goes below: every group alone in the best place for it.
std::vector<double> least_group_seconds(const Slots& slots, std::span<const RankGroup> groups);

}  // namespace piper::placement
