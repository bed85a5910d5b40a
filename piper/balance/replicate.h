// Redundant slots: hot experts held by several ranks, which share their rows (DeepSeek's EPLB).
//
//   1  groups of experts, heaviest first, go to the lightest node that has room (where experts are
//      in groups that the nodes divide; else the ranks are one node)
//   2  on a node every redundant slot goes to the expert whose copies have the most rows each
//   3  copies, heaviest first, go to the node's lightest rank that has room and none of the same
//
// Homes move as well, so this is what redundant slots can bring at most (`piper bench balance`); a
// run, whose homes stay, chooses its copies by copies.h.
#pragma once

#include <piper/balance/rank_load.h>

#include <cstdint>

namespace piper::balance {

struct RedundantSlots {
  int64_t num_ranks = 1;
  int64_t slots_per_rank = 1;
  int64_t num_nodes = 1;   // of equally many ranks, one behind the other
  int64_t num_groups = 1;  // of experts, one behind the other; what a token's experts are chosen in
};

// Makes a placement from scratch, whose ranks hold `slots_per_rank` experts each. Requires nodes
// that divide the ranks, groups that divide the experts, a slot for every expert and no more slots
// on a rank than its node has experts (PIPER_CHECK). The first of equals is taken. O(S (E + R)) for
// S slots.
ExpertPlacement replicate(const Loads& loads, const RedundantSlots& slots);

}  // namespace piper::balance
