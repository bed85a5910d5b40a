// Reduce-scatter in place by direct messages, one round: each owner receives everyone's values of
// its share and adds them in ascending order of members, whatever the order of arrival: bit-equal
// in every run, and to all_reduce_direct.
//
//   owner 2 of 4:   scratch: x0 x1 x3    output: x2      ((x0 + x1) + x2) + x3 in the output
//
// A member sends n - 1 messages, all but its own share; scratch is n - 1 times its share. Long
// shares are worked on in pieces, with a message each: scratch is then two slots of n - 1 pieces,
// one filling while the other is added.
#pragma once

#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <span>

namespace piper::collective {

// Every share is cut into pieces of `piece` elements (the last one may be shorter), the same for
// all members. Requires piece >= 1.
MemberSteps reduce_scatter_direct(int64_t member, int64_t num_members, int64_t count,
                                  int64_t piece = kWholeShare);
// The shares may have any sizes, `counts` by member, and lie back to back.
MemberSteps reduce_scatter_direct(int64_t member, std::span<const int64_t> counts,
                                  int64_t piece = kWholeShare);

}  // namespace piper::collective
