// DualPipeV (DeepSeek's DualPipe, 2025, cut in half: Sea AI Lab's "cut-in-half" V): two chunks a
// rank in the shape of a V, and in the steady part every forward is paired with a backward of
// another micro-batch on the other arm, so that the exchanges of one hide behind the compute of the
// other. Backwards are split only where that shortens fill and drain. With F, B, W of one chunk and
// F&B a pair, in DeepSeek's words with PP = 2 pp stages: bubble (PP/2-1)(F&B+B-3W), peak PP+1
// chunk-forwards.
//
//   1  2(pp-r-1) x  F        (capitals: chunk 0, small letters: chunk 1, +: a pair)
//   2       r+1  x  F f
//   3    pp-r-1  x  i w f
//   4  m-2pp+r+1 x  F+b f+B  (the last rank's first F and b are no pair: b would wait for nothing but F)
//   5    pp-r-1  x  b f+B
//   6       r+1  x  b B      (the second half split: i I)
//   7    pp-r-1  x  w I      (w: the oldest that is due)
//   8       r+1  x  w
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// rank in [0, pp), two chunks. Fewer than 2 pp micro-batches are taken from the list of 2 pp
// (drop_micro_batches_from).
std::vector<Action> dualpipev_actions(int64_t pp, int64_t rank, int64_t num_micro_batches);

}  // namespace piper::schedule
