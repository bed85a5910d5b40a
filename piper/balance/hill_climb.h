// Algorithm 2 of the Piper paper, as printed: exchange an expert of the fullest rank for one of the
// emptiest, the pair that narrows the difference of the two most, until no pair does or T exchanges
// are made. It neither stops at a threshold nor looks at other ranks; pair_search.h does.
#pragma once

#include <piper/balance/rank_load.h>

#include <cstdint>

namespace piper::balance {

inline constexpr int64_t kPaperIterations = 100;  // T

// num_swaps is the algorithm's c. Requires what rank_loads() does. Among equal ranks and among
// equal pairs the first counts, as the printed comparisons have it. O(T (ranks + (E / ranks)^2)).
Rebalanced hill_climb(const ExpertPlacement& start, const Loads& loads,
                      int64_t max_iterations = kPaperIterations);

}  // namespace piper::balance
