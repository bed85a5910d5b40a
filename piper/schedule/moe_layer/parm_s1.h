// Parm's schedule S1 (Pan et al. 2024, section IV, Fig. 3b) of tokens that tensor-parallel ranks
// hold alike: each takes its own share of them in front of the gate, and all gather the layer's
// output. So every token is routed, sent and computed once, where the plain layer does it once a
// rank. Between the two it is the plain layer of a rank's own tokens. Where ranks share the
// experts' matrices, its exchanges are over all ranks that hold a layer's experts
// (strategy::fuses_exchange): a row goes to each that has a part of its expert, and a part of its
// result comes back from each.
//
//   forward     own share   plain layer   all-gather of x
//   backward    own share   plain layer   all-gather of gradient(x1)
//
// The share is a view that the segments take of what they read: it costs nothing. The backward's
// gather, the split's conjugate, is in no equation of the paper.
#pragma once

#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

// From x1 to the program's output, and from its gradient to that of x1, which is returned.
LayerSlot write_parm_s1_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1);

}  // namespace piper::schedule
