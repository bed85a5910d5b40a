// What stands behind the layers on the last stage: the head, and the modules of multi-token
// prediction with theirs (DeepSeek-V3, section 2.2, eq. 21-25). Module k = 1 .. depth has the layer
// with index num_layers() + k - 1, which the tasks of its join and of its head carry too.
//
//   x of the last layer --+--> head
//                         +--> join of module 1 --> layer --> x --+--> head of module 1
//                              (with tokens i + 1)                +--> join of module 2 --> ...
#pragma once

#include <piper/schedule/writer.h>

#include <cstdint>

namespace piper::schedule {

// What a head's forward leaves for its backward, for one micro-batch.
struct HeadSlots {
  graph::SlotId x = graph::SlotId::none();  // that it reads, and the next module's join as well
  graph::SlotId tape = graph::SlotId::none();
};

// The loss alone, of the model's own head: x is freed.
void write_loss(RankWriter& writer, graph::SlotId x);
// Layer -1: the model's own head.
HeadSlots write_head_forward(RankWriter& writer, int32_t layer, graph::SlotId x);
// Whether a head takes its own share of tokens that the ranks of tp hold alike: the gradient is
// then gathered from all of them.
bool gathers_head_gradient(const StepWriter& step);
// Returns the gradient of x; frees the tape, and x unless a join's backward still reads it.
graph::SlotId write_head_backward(RankWriter& writer, int32_t layer, const HeadSlots& head,
                                  bool is_joined);

// Returns the input of the module's layer.
graph::SlotId write_join_forward(RankWriter& writer, int32_t layer, graph::SlotId x);
// From the gradients of the module's input and of x (its own head's part) to that of x as a whole,
// which is returned; frees all three.
graph::SlotId write_join_backward(RankWriter& writer, int32_t layer, graph::SlotId input_gradient,
                                  graph::SlotId head_gradient, graph::SlotId x);

}  // namespace piper::schedule
