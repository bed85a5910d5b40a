// Bytes of a layer's slots during one micro-batch's forward and backward on one rank, task by task
// as the layer's program has them (schedule/layer_passes.h).
#pragma once

#include <piper/cost/activation.h>
#include <piper/cost/live_bytes.h>
#include <piper/model/model.h>
#include <piper/schedule/layer_passes.h>

#include <cstdint>

namespace piper::cost {

// What a micro-batch keeps between its forward and its backward, by kind.
struct KeptBytes {
  int64_t hidden = 0;     // the residual stream: x and x1
  int64_t attention = 0;  // its tape
  int64_t gate = 0;       // its tape and the routing
  int64_t rows = 0;       // token copies: dispatched, received, returned
  int64_t experts = 0;    // their tape
  int64_t dense_mlp = 0;  // its tape
  int64_t head = 0;       // its tape
  int64_t total() const { return hidden + attention + gate + rows + experts + dense_mlp + head; }
  KeptBytes& operator+=(const KeptBytes& other);
  KeptBytes operator*(int64_t factor) const;
};

// Where a slot of this kind that this segment writes counts.
int64_t& part_of(KeptBytes& kept, schedule::SlotKind kind, schedule::SegmentKind writer);

// Relative to a live input: the forward leaves the layer's output and what is kept (the input among
// it, but not counted again), the backward starts with the gradient of the output live and ends
// with that of the input, everything kept and the input released.
// Beside an exchange its scratch is live (all_to_all_config.h), and beside what computes meanwhile.
struct LayerMemory {
  Stretch forward;
  Stretch backward;  // preceded by the layer's recomputation where there is one
  KeptBytes kept;    // with the layer's input
};
LayerMemory layer_memory(const model::Model& model, int32_t layer, const SegmentWork& work,
                         const schedule::LayerPasses& passes, int64_t exchange_scratch = 0);

}  // namespace piper::cost
