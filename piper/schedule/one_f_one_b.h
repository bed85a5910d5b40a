// 1F1B (PipeDream-Flush, Narayanan et al. 2021): a stage runs as many forwards as there are stages
// behind it, then one forward and one backward in turn, then the backwards that are left. Bubble
// (pp-1)(F+B) like GPipe, but stage i holds the activations of at most pp-i micro-batches.
//
// With `pairs` each forward overlaps with the backward behind it (Megatron-LM's
// --overlap-moe-expert-parallel-comm): these must be of two micro-batches, and neither may wait for
// the other half of a neighbour's pair, so that a stage has 2 (pp-1-i) + 1 forwards ahead and holds
// one more:
//
//   stage 0 of 2   F0 F1 F2 | F3 B0 | F4 B1 | ... B
//   stage 1           F0 | F1 B0 | F2 B1 | ...
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// stage in [0, pp); fewer micro-batches than stages are fine.
std::vector<Action> one_f_one_b_actions(int64_t pp, int64_t stage, int64_t num_micro_batches,
                                        bool pairs = false);

}  // namespace piper::schedule
