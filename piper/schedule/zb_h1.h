// ZB-H1 (Qi et al. 2024, section 2.2): 1F1B with the backward split. The weights' part of rank r
// lags r micro-batches behind the input's, so that in the drain, where a rank waits for gradients,
// it has r of them to fill the wait with. With F forward, I and W the two parts of the backward:
// bubble (pp-1)(F+I-W) for I >= W, a third of 1F1B's when they are equal. Every rank holds pp
// micro-batches: the pp - r whose forwards run ahead, and r whose weights' part is due.
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// rank in [0, pp); fewer micro-batches than stages are fine.
std::vector<Action> zb_h1_actions(int64_t pp, int64_t rank, int64_t num_micro_batches);

}  // namespace piper::schedule
