// GPipe (Huang et al. 2019): all forwards, then all backwards. Bubble (pp-1)(F+B); every
// micro-batch's activations are held at once.
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// The same on every stage. Backwards run in the order of the forwards, as under 1F1B, so that
// gradients are summed in the same order under either.
std::vector<Action> gpipe_actions(int64_t num_micro_batches);

}  // namespace piper::schedule
