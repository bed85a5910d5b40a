// All-gather in place by direct messages, one round: everyone sends its share to everyone, straight
// from its place into the same place.
//
//   member 1 of 3:   |  .  | own |  .  |   ->0, ->2        0-> |  x  |     2->             |  x  |
//
// A member sends n - 1 messages of its share; no scratch, no copy.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <span>

namespace piper::collective {

MemberSteps all_gather_direct(int64_t member, int64_t num_members, int64_t count);
// The shares may have any sizes, `counts` by member, and lie back to back. An empty share is no
// message.
MemberSteps all_gather_direct(int64_t member, std::span<const int64_t> counts);

}  // namespace piper::collective
