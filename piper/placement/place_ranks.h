// Puts the ranks of a strategy on the slots of an allocation, so that what says most to each other
// sits together: inside a node, else a switch group, else a rack.
//
//   1. the order given; and a packing from the outside in: blocks of ranks (those of the heaviest
//      axis together, then of the next, ...) go into the units of the outermost level as wholes
//      where they fit, cut into their parts where they do not, by four rules of which unit comes
//      first; then the same inside every unit (pack_ranks.h)
//   2. swaps of two ranks and of two nodes' contents while they gain; the same from the best so far
//      after some random swaps, as long as the allowance of swaps lasts (placement_search.h)
//   3. small cases: every placement that could be better, up to symmetry (best_placement.h)
//
// Deterministic. Never dearer than the order given.
#pragma once

#include <piper/placement/placement_price.h>

#include <cstdint>
#include <span>

namespace piper::placement {

struct PlaceOptions {
  int64_t max_swaps = 3'000'000;   // tried, in all
  int64_t max_branches = 300'000;  // of step 3; 0: leave it out
};
// For comparing choices; the one that is taken is placed with all care by whoever asked.
constexpr PlaceOptions kQuickPlacing{.max_swaps = 200'000, .max_branches = 30'000};

struct Placing {
  RankSlots ranks;           // by rank: its slot
  double seconds = 0;        // price_placement()
  double given_seconds = 0;  // rank i on slot i
  double random_seconds =
      0;  // nodes in random order, each filled in turn: the median of kRandomOrders
  double least_seconds = 0;  // no placement is below
  bool is_best = false;      // no placement is below `seconds`: proven
};
inline constexpr int kRandomOrders = 15;

// Requires 1 <= num_ranks <= slots.size(), and groups of those ranks.
Placing place_ranks(const Slots& slots, std::span<const RankGroup> groups, int32_t num_ranks,
                    const PlaceOptions& options = {});

}  // namespace piper::placement
