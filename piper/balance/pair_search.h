// What improves on the paper's Algorithm 2 (hill_climb.h): from the busiest rank to *every* other
// one, by exchanges and, where ranks may hold unequal numbers, by single moves.
//
//   step      of all exchanges and moves between the busiest rank and another, the one that lowers
//             the larger of the two ranks' loads most for its cost (a migration that leaves its
//             node costs cost_between_nodes, an exchange is two migrations)
//   ends      at the threshold, at the budget of migrations, or where no step lowers the busiest
//
// An expert that comes back to the rank where it began is a migration less, and the budget counts
// it so. EPIC (SIGCOMM 2026) pairs the heaviest host with the lightest in the same spirit.
#pragma once

#include <piper/balance/rank_load.h>

namespace piper::balance {

// Requires what rank_loads() does. O(steps x ranks x (E / ranks)^2). Deterministic: of equal steps
// the first in the order of ranks and experts.
Rebalanced pair_search(const ExpertPlacement& start, const Loads& loads,
                       const SearchLimits& limits = {});

}  // namespace piper::balance
