// ZB-V (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 6): two chunks a rank in the
// shape of a V. The first rank holds both ends of the model, so it begins its first backward after
// 2 pp forwards of a chunk, and every rank can run ahead equally far: activations of all of them
// peak at 2 pp chunk-forwards, those of 1F1B's first rank. When forward, input's and weights' part
// of the backward take the same time and messages none, no rank idles between its first action and
// its last (from 2 pp - 1 micro-batches on). Rank r still starts r chunk-forwards after the first
// and ends as much later: a step that waits for all ranks is (pp-1) chunk-forwards longer than its
// work.
//
//   rank 0 of 2, 4 micro-batches; small letters: chunk 1; w: the weights' part
//   F0 F1 F2  f0 i0 w0  f1 i1 w1  F3 I0 W0 f2 i2 w2  I1 W1 f3 i3 w3  I2 W2 I3 W3
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// rank in [0, pp), two chunks. Fewer than 2 pp - 1 micro-batches are taken from the list of 2 pp -
// 1 (drop_micro_batches_from).
std::vector<Action> zb_v_actions(int64_t pp, int64_t rank, int64_t num_micro_batches);

}  // namespace piper::schedule
