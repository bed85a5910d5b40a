// Interleaved 1F1B (Narayanan et al. 2021, section 2.2, as Megatron-LM runs it): the layers are cut
// into pp x vpp chunks and dealt round robin, so that a micro-batch goes vpp times around the ranks
// and fill and drain take 1/vpp of the time: bubble (pp-1)(F+B)/vpp with F and B of all of a rank's
// layers, for vpp times the messages. Forwards take pp micro-batches through chunk 0, the same pp
// through chunk 1, ...; backwards the same from the last chunk to the first. A rank runs (pp - rank
// - 1) 2 + (vpp - 1) pp forwards of chunks before its first pair, and holds one chunk-forward more
// than that. With `pairs`, one forward more is ahead, and each overlaps with the backward behind
// it, which is then of another micro-batch (Megatron-LM's --overlap-moe-expert-parallel-comm).
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// rank in [0, pp); vpp >= 1. Micro-batches that are no multiple of pp are written as the next
// multiple with the rest taken out (drop_micro_batches_from), which leaves their places in the
// first and last round idle.
std::vector<Action> interleaved_actions(int64_t pp, int64_t rank, int64_t num_micro_batches,
                                        int64_t vpp, bool pairs = false);

}  // namespace piper::schedule
