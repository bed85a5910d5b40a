// libtorch's memory-efficient attention, which no CPU has, for tests of what calls it: the plain
// composition behind the operator's own arguments, with its padded log-sum-exps.
#pragma once

#include <cstdint>

namespace piper::testing::stand_in {

// How often its forward was called.
int64_t num_fused_attentions();
// From now on its results are too large by a half, or right again.
void spoil_fused_attention(bool wrong);

}  // namespace piper::testing::stand_in
