// A layer's forward and backward of two micro-batches, turn by turn: while one's rows travel, the
// other computes the block between two of its own exchanges, and the backward makes the gradients
// of the weights of its last block.
//
//   forward    wait combine  attention  post dispatch |            | wait dispatch  experts  post combine |
//   backward                                          | wait combine  experts  post dispatch  weights |    | wait dispatch ...
//
// Rows of both share the links where one waits for what should have come and the other's are on
// their way already, and with collectives of tp and cp: the fluid of the simulation
// (sim/network.h), repeated until layers take the same time.
#pragma once

#include <piper/cost/trainer/overlap_timeline.h>

namespace piper::cost {

// By how many seconds less than the forward and the backward one behind the other `n` layers take:
// n layer - ends, for at a chunk's ends nothing is there to compute meanwhile. `efficiency`: what
// compute is divided by. Pure.
struct PairSaving {
  double layer = 0, ends = 0;
};
PairSaving saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs, double efficiency);

}  // namespace piper::cost
