// Writes the tasks of a layer's passes (layer_passes.h) of one micro-batch on one rank.
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

// The passes of a layer on a pipeline rank.
const LayerPasses& passes_of(const StepWriter& step, int32_t layer, int64_t pp_rank);

void write_layer_task(RankWriter& writer, const LayerPasses& passes, const LayerTask& task,
                      int32_t layer, LayerSlots& slots, PendingTasks& posted);

SlotMeaning meaning(const LayerPasses& passes, LayerSlot slot, int32_t layer);
// Whose forward writes a layer's output, and whose backward its input's gradient: for slots that
// arrive from another stage.
SlotMeaning layer_output(const StepWriter& step, int32_t layer);
SlotMeaning layer_input_gradient(const StepWriter& step, int32_t layer);

}  // namespace piper::schedule
