// One layer's segments and exchanges: forward, recompute, backward of one micro-batch on one rank.
#pragma once

#include <piper/schedule/writer.h>

#include <cstdint>

namespace piper::schedule {

// What a layer's forward leaves for its backward, for one micro-batch. none(): not alive, or the
// layer has no such slot.
struct LayerSlots {
  graph::SlotId x = graph::SlotId::none();   // input of the layer
  graph::SlotId x1 = graph::SlotId::none();  // between attention and feed-forward
  graph::SlotId attention_tape = graph::SlotId::none();
  graph::SlotId feed_forward_tape = graph::SlotId::none();  // of the gate or the dense MLP
  graph::SlotId shared_tape = graph::SlotId::none();
  graph::SlotId routing = graph::SlotId::none();
  graph::SlotId expert_input =
      graph::SlotId::none();  // received rows; the gate's own rows when ep = 1
  graph::SlotId experts_tape = graph::SlotId::none();
  graph::SlotId merge_input = graph::SlotId::none();  // returned rows; the experts' own when ep = 1
};

// Requires slots.x. Writes the rest of `slots`, returns the layer's output. With recompute kFull
// only slots.x is alive afterwards; with a part of it, the tapes of that part are none().
graph::SlotId write_layer_forward(RankWriter& writer, int32_t layer, LayerSlots& slots);

// Requires slots.x and begin(kRecompute): writes what the backward reads. The counts are not
// exchanged again (the player keeps them from the forward), and nothing is merged.
void write_layer_recompute(RankWriter& writer, int32_t layer, LayerSlots& slots);

// From the gradient of the output to that of the input, which is returned; frees everything in
// `slots`. Tapes that are none() are written again first, in phase kRecompute, where possible while rows travel: the
// feed-forward nets before their own backward, attention before the gate's.
graph::SlotId write_layer_backward(RankWriter& writer, int32_t layer, LayerSlots& slots,
                                   graph::SlotId output_gradient);

// Whose forward writes a layer's output, and whose backward its input's gradient: for slots that
// arrive from another stage.
SlotMeaning layer_output(const model::Model& model, int32_t layer);
SlotMeaning layer_input_gradient(int32_t layer);

}  // namespace piper::schedule
