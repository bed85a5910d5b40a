// Reduce-scatter in place by direct messages, one round: each owner receives everyone's values of
// its share and adds them in ascending order of members, whatever the order of arrival: bit-equal
// in every run, and to all_reduce_direct.
//
//   owner 2 of 4:   scratch: x0 x1 x3    output: x2      ((x0 + x1) + x2) + x3 in the output
//
// A member sends n - 1 messages, all but its own share; scratch is n - 1 times its share.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

MemberSteps reduce_scatter_direct(int64_t member, int64_t num_members, int64_t count);

}  // namespace piper::collective
