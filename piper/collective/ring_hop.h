// One hop of a ring: everyone sends all of its input to the next member, and has its output from
// the one before.
//
//   member 1 of 3:   | own |  ->2        0->  | x |
//
// One message a member; no scratch, no copy. After n - 1 hops, each with what the hop before has
// brought, everyone has had everything.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

// Requires more than one member (PIPER_CHECK). `count`: units, the same of all.
MemberSteps ring_hop(int64_t member, int64_t num_members, int64_t count);

}  // namespace piper::collective
