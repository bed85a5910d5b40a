// All-gather in place along a ring, n - 1 rounds: each share travels once round, from neighbour to
// neighbour, straight into its place.
//
//   share j:   j -> j+1 -> j+2 -> ... -> j-1
//
// A member sends n - 1 messages to one neighbour only; no scratch, no copy. Never more than one
// send and one receive in flight.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_gather_ring(int64_t member, int64_t num_members, int64_t count);

}  // namespace piper::collective
