// Every placement that could be better than a known one, up to the symmetry of empty units: branch
// and bound, rank by rank. A branch ends where the groups' seconds so far, none less than its own
// least, reach the best known.
#pragma once

#include <piper/placement/placement_price.h>

#include <cstdint>
#include <span>

namespace piper::placement {

struct BestPlacement {
  RankSlots ranks;
  bool is_best = false;  // all branches were looked at
};

// `order`: in which ranks are placed; those that say much to each other should follow each other.
// At most `max_branches` nodes of the search tree. Deterministic.
BestPlacement best_placement(const Slots& slots, std::span<const RankGroup> groups,
                             const RankSlots& known, std::span<const int32_t> order,
                             int64_t max_branches);

}  // namespace piper::placement
