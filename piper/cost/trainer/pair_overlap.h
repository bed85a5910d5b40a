// A layer's forward and backward of two micro-batches, turn by turn: while one's rows travel, the
// other computes the block between two of its own exchanges, and the backward makes the gradients
// of the weights of its last block.
//
//   forward     wait combine, attention, post dispatch
//   backward    wait combine, experts, post dispatch, weights
//   forward     wait dispatch, experts, post combine
//   backward    wait dispatch, attention, weights, (the next layer's forward again,) post combine
//
// Rows of both share the links where one waits for what should have come and the other's are on
// their way already, and with collectives of tp and cp: the fluid of the simulation
// (sim/network.h), over three layers, of which the last stands for every further one.
#pragma once

#include <piper/cost/layer_walk.h>
#include <piper/cost/trainer/overlap_timeline.h>
#include <piper/cost/trainer/trainer_context.h>

namespace piper::cost {

// Seconds of compute of a layer's blocks.
struct PairCompute {
  BlockCompute attention, feed_forward;
  // Before the backward's turn: what a recomputation makes again, and whether all collectives of
  // the forward are among it.
  double attention_again = 0, feed_forward_again = 0;
  bool travels_again = false;
};

PairCompute pair_compute(const LayerPrice& p, strategy::Recompute recompute,
                         const TrainerProfile& trainer, const ComputeScale& scale);

// By how many seconds less than the forward and the backward one behind the other `n` layers take:
// n layer - ends, for at a chunk's ends nothing is there to compute meanwhile. Pure.
struct PairSaving {
  double layer = 0, ends = 0;
};
PairSaving saved_in_pairs(const LayerPrice& p, const ShapeNeeds& needs, const PairCompute& compute);

// Seconds alone of a layer's weights, gathered for either pass, and of its gradients; the part of
// them that travels beside the layer, at whose end it is awaited.
struct PairStates {
  double weights = 0, gradients = 0;
  double hidden = 1;
  LevelUtilization needs;
};

// What the layers of such a chunk take with their states. Pure.
PairSeconds pair_seconds(const LayerPrice& p, const ShapeNeeds& needs, const PairCompute& compute,
                         const PairStates& states);

}  // namespace piper::cost
