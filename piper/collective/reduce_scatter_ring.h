// Reduce-scatter in place along a ring, n - 1 rounds: a partial sum of each share travels once
// round, every member adding its own values, and ends at the share's owner.
//
//   share j:   j+1 -> j+2 -> ... -> j-1 -> j          ((x_{j+1} + x_{j+2}) + ...) + x_j
//
// The order of addition is fixed, but another one for each share: bit-equal in every run, not to
// the ascending sum. A member sends n - 1 messages of about count / n to one neighbour only;
// scratch is two shares: one arrives while the other is added. Never more than one send and one
// receive in flight.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

MemberSteps reduce_scatter_ring(int64_t member, int64_t num_members, int64_t count);

}  // namespace piper::collective
