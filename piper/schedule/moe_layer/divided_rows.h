// Rows that tensor-parallel ranks divide, of tokens that all of them hold and route: what MoNTA's
// O1 and O2 (Guo et al. 2024, section 3.3) and Parm's S2 (Pan et al. 2024, section III-B, Fig. 3c)
// have in common. All ranks run the same gate; each takes its share of every expert's rows, so that
// every row is sent and computed once, where the plain layer does it once a rank.
//
//   forward     gate   own rows   exchange   experts   exchange   gather of the rows   merge
//   backward    merge  own rows   exchange   experts   exchange   gather of the rows   gate
//
// The share is taken where rows are written: by the gate, and by merge's backward, which reads the
// results of all rows and leaves the weights' gradients of all. Its conjugate is the gather, in
// both passes: the ranks hold the same gradient, and a reduce-scatter would count it once a rank.
//
// At once it is O1, or S2 with its exchange and gather one behind the other (AAS). In chunks of
// tokens (chunked.h) it is O2, and S2 with the gather of one slice beside the exchange of the next
// (SAA). Where ranks share an expert's matrices, those of O1 and O2 gather their rows, which now
// are not the same ones, over etp; S2 sends a row to each of them (strategy::fuses_exchange).
#pragma once

#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

// What a task reads in place of `rows`: a slot of this kind with those of all ranks, or `rows`
// where they are not divided.
LayerSlot gather_divided_rows(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                              SlotKind slot, LayerSlot rows, LayerSlot routing);

// The same where a mixture is one segment (ExecutionStyle::mixture_is_one_segment): its ranks
// gather the segment's output, whether they divide rows or tokens (Parm's S1).
LayerSlot gather_behind_segment(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                                SlotKind slot, LayerSlot own);

}  // namespace piper::schedule
