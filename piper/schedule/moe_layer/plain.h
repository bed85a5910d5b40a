// The mixture layer as everybody writes it: rows go to their experts, are computed with, come back
// and are added up. Shared experts compute while the rows travel, and their backward, like whatever
// is recomputed, while gradients do.
#pragma once

#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

// From x1 to the program's output, and from its gradient to that of x1, which is returned.
LayerSlot write_plain_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1);

// Writes the gate's forward; where ranks share a capacity, before it their choices and the gathers
// of them.
void write_gate(LayerProgram& program, const LayerKind& kind, LayerSlot x1,
                const LayerSlotList& writes);

// What the sum of experts' choices by sequence is in, over all ranks that share the sequences of a
// routing; none() where none do.
LayerSlot sum_sequence_counts(LayerProgram& program, const LayerKind& kind, LayerSlot routing);

}  // namespace piper::schedule
