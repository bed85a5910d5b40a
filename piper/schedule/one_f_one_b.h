// 1F1B (PipeDream-Flush, Narayanan et al. 2021): a stage runs as many forwards as there are stages
// behind it, then one forward and one backward in turn, then the backwards that are left. Bubble
// (pp-1)(F+B) like GPipe, but stage i holds the activations of at most pp-i micro-batches.
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// stage in [0, pp); fewer micro-batches than stages are fine.
std::vector<Action> one_f_one_b_actions(int64_t pp, int64_t stage, int64_t num_micro_batches);

}  // namespace piper::schedule
