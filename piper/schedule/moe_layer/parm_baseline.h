// Parm's baseline, which the paper takes to be the order of DeepSpeed-MoE (Pan et al. 2024, section
// IV-A, eq. 1, Fig. 3a): ranks that share experts' matrices (ESP) gather their tokens in front of
// the gate. Each routes the tokens of all and sends their rows, so that all of them receive the
// same ones; behind the layer each keeps its own tokens.
//
//   forward     gather of x1            gate   exchange   experts   sum   exchange   merge of own
//   backward    gather of gradient(x)   merge  exchange   experts   sum   exchange   gate of own
//
// Keeping own tokens is a view. Its conjugate is the backward's gather (in the paper's text, not in
// eq. 1); the conjugate of the gather is a view likewise, since the sum over the ranks' parts has
// left every rank the whole gradient: a reduce-scatter would count it once a rank. Ranks of one tp
// group gather as many copies of the same tokens, and compute with all of them: what the schedules
// S1 and S2 save. Weights' gradients count one (strategy::copies_of_rows).
//
// All between the gathers is the plain layer (plain.h), of as many times the tokens.
#pragma once

#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

// What the gate, and merge's backward, read in place of a rank's own tokens: a slot with those of
// all ranks, or `own` where none are gathered.
LayerSlot gather_tokens(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                        LayerSlot own);

}  // namespace piper::schedule
