// All-reduce in place along a ring: reduce_scatter_ring, then all_gather_ring, 2 (n - 1) rounds.
// Every member has the same sum to the bit, in every run; it is not the ascending one.
//
//   share j:   sums j+1 -> ... -> j, then copies j -> j+1 -> ... -> j-1
//
// A share's place is overwritten once the member's own partial sum has left it. Scratch: two
// shares.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_reduce_ring(int64_t member, int64_t num_members, int64_t count);

}  // namespace piper::collective
