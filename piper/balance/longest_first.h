// Longest processing time first (Graham 1969) with equal numbers of experts on every rank: the
// heaviest expert that is left goes to the lightest rank that has room. It asks nothing of where
// experts are, so it says how even a placement from scratch is, and what that moves.
#pragma once

#include <piper/balance/rank_load.h>

namespace piper::balance {

// Requires that the ranks of `start` hold equally many experts, one copy each (PIPER_CHECK). Within
// a rank an expert that stays keeps its index; those that come fill the gaps, ascending. Among
// equally light ranks the expert's own is taken, else the first. O(E log E + E ranks).
Rebalanced longest_first(const ExpertPlacement& start, const Loads& loads);

}  // namespace piper::balance
