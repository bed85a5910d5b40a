// Which nodes to ask for when the scheduler lets one choose: of those that are free, as many as
// wanted, so that the best placement of the ranks is cheapest.
//
// Candidates: the first in the order given; then, unit by unit from the outside in, the fewest
// units that hold them: the one that fits best where one is enough, else the emptiest ones first
// and the rest from the one that fits it best; the same taking from each unit only whole multiples
// of 2, 3, 4, 6, 8, ... nodes, so that expert groups are not cut. Each is placed and priced; then
// single nodes are exchanged for free ones of other units while that gains. Where there are few
// ways to draw the count from the innermost units, all of them are looked at.
#pragma once

#include <piper/placement/place_ranks.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::placement {

struct NodeChoice {
  std::vector<int32_t> nodes;      // indices of the allocation's, ascending
  double seconds = 0;              // of the best placement found on them
  double first_seconds = 0;        // the same on the first nodes in order
  std::vector<int64_t> num_units;  // by boundary from the innermost groups on: how many they touch
  std::vector<int64_t> first_units;  // the same of the first nodes
  bool is_best =
      false;  // all ways were looked at, up to nodes that are alike, each placement proven
};

// By boundary from the innermost groups on: how many units these nodes of the allocation touch.
std::vector<int64_t> units_of(const cluster::Allocation& allocation,
                              std::span<const int32_t> nodes);

// `allocation`: all free nodes. Throws InvalidInput when they are fewer than `count`, or none of
// the candidates has `num_ranks` slots.
NodeChoice choose_nodes(const cluster::Allocation& allocation, int64_t count,
                        std::span<const RankGroup> groups, int32_t num_ranks);

}  // namespace piper::placement
