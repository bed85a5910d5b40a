// Writes a layer's passes (layer_passes.h) of one micro-batch on one rank as tasks.
#pragma once

#include <piper/schedule/layer_passes.h>
#include <piper/schedule/writer.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// The slots of a layer's program that live between its passes, for one micro-batch. Begins with
// none.
class LayerSlots {
 public:
  graph::SlotId& operator[](LayerSlot slot) {
    if (slots_.size() <= slot.index()) slots_.resize(slot.index() + 1, graph::SlotId::none());
    return slots_[slot.index()];
  }

 private:
  std::vector<graph::SlotId> slots_;
};

// From the layer's input x to its output, which is returned. With recompute kFull only x stays.
graph::SlotId write_layer_forward(RankWriter& writer, int32_t layer, graph::SlotId x,
                                  LayerSlots& slots);

// With recompute kFull, before the backward: writes what it reads. Nothing otherwise.
void write_layer_recompute(RankWriter& writer, int32_t layer, LayerSlots& slots);

// From the gradient of the output to that of the input, which is returned; frees everything that
// the forward has left.
graph::SlotId write_layer_backward(RankWriter& writer, int32_t layer, graph::SlotId output_gradient,
                                   LayerSlots& slots);

// Whose forward writes a layer's output, and whose backward its input's gradient: for slots that
// arrive from another stage.
SlotMeaning layer_output(const StepWriter& step, int32_t layer);
SlotMeaning layer_input_gradient(const StepWriter& step, int32_t layer);

}  // namespace piper::schedule
