// A layer's forward and backward of two micro-batches, turn by turn (DualPipeV): while one's rows
// travel, the other computes the block between two of its own exchanges, and the backward makes the
// gradients of the weights of its last block.
//
//   forward    wait combine  attention  post dispatch |            | wait dispatch  experts  post combine |
//   backward                                          | wait combine  experts  post dispatch  weights |    | wait dispatch ...
//
// Rows of both share the links where one waits for what should have come and the other's are on
// their way already, and with collectives of tp and cp: the fluid of the play (sim/network.h),
// repeated until layers take the same time.
#pragma once

#include <piper/cost/trainer/state_overlap.h>

namespace piper::cost {

// Seconds less than the forward and the backward take one behind the other. `efficiency`: what
// compute is divided by. Pure.
double saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs, double efficiency);

}  // namespace piper::cost
