// Attention of ranks that share a sequence, where keys and values pass round a ring (Liu et al.
// 2023): a step with those of each rank, its own first, while the next ones arrive. A slot goes to
// the next rank only; what a step reads has travelled beside the step before.
//
//   forward    hop           1       2       3
//              ring step         0       1       2       3    then the outputs' projection
//   backward   hop           1       2       3
//              ring step         1       2       3       0    behind that projection's backward
//              return                1       2       3        gradients of keys and values, home
//
// Alive at once are a rank's own keys and values and those of at most three others, whatever the
// ring's length. The heads' outputs of a step are merged with those before by their log-sum-exps;
// the backward of each step has the log-sum-exps over all keys.
#pragma once

#include <piper/schedule/layer_program.h>

#include <cstdint>

namespace piper::schedule {

// Writes hops and steps into the forward; returns what the last step has made.
LayerSlot write_ring(LayerProgram& program, int16_t ranks, LayerSlot queries, LayerSlot keys);

// What the ring's backward reads of the forward.
struct RingSlots {
  LayerSlot queries, keys, outputs;
};
// What it leaves: gradients of queries, of keys and values by the other ranks, by this rank.
struct RingGradients {
  LayerSlot queries = LayerSlot::none(), keys = LayerSlot::none(), own_part = LayerSlot::none();
};
// Writes attention's backward (which reads `reads`, and `frees` to free them), hops, steps and
// returns into the backward.
RingGradients write_ring_back(LayerProgram& program, int16_t ranks, const LayerSlotList& reads,
                              const LayerSlotList& frees, const RingSlots& forward);

}  // namespace piper::schedule
