// The buffers in which a rank holds a layer's weights and their gradients: one of each for every
// axis over whose ranks they are the same (nn::Sharding::replicas). ZeRO divides them among these
// ranks.
#pragma once

#include <piper/schedule/writer.h>

#include <cstdint>

namespace piper::schedule {

// Layers of the ends: the first's table, the last's norm and table.
inline constexpr int32_t kEmbeddingLayer = -1, kHeadLayer = -2;

// What travels of one: as weights that are gathered, and as gradients that are summed.
struct StateBuffer {
  SegmentKind weights = SegmentKind::kDenseWeights;
  SegmentKind gradients = SegmentKind::kDenseGradients;
};

// Returns the buffers of a layer (>= 0) or of an end that at least two ranks hold alike.
graph::List<StateBuffer> state_buffers(const StepWriter& step, int32_t layer);

// Whether experts of a layer have copies on other ranks (expert_copies.h).
bool copies_experts(const StepWriter& step, int32_t layer);

// Whether the gradients of such buffers have memory for a part of a micro-batch alone
// (SlotKind::kGradients).
bool divides_gradients(const StepWriter& step, int32_t layer);

// What stands before a module of multi-token prediction: the module before it, or the model's own
// head. The module's join reads the norm in front of that one's head.
int32_t layer_before_module(const StepWriter& step, int32_t module);

// The buffers of gradients (Segment::kind and layer) that a compute task adds to, of those that
// are divided. A head adds to its table in the forward, to its norm in the backward; of a backward
// in two parts the input's part adds to norms and biases. A module's join adds to the norm of the
// head before it and to the embedding as well.
graph::List<Segment> divided_gradients_of(const StepWriter& step, const Segment& segment,
                                          graph::Phase phase);

}  // namespace piper::schedule
