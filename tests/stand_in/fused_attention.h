// libtorch's memory-efficient attention, which no CPU has, for tests of what calls it: the plain
// composition behind the operator's own arguments, with its padded log-sum-exps.
#pragma once

#include <cstdint>

namespace piper::testing::stand_in {

// How often its forward was called.
int64_t num_fused_attentions();
// From now on one of its five results is no number (output, log-sum-exp, gradients of q, k, v);
// -1: all are right again.
inline constexpr int kFusedResults = 5;
void spoil_fused_attention(int result);

}  // namespace piper::testing::stand_in
