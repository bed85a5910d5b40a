// All-to-all with uneven counts, flat, with at most `window` sends of a member in flight: send i
// waits for send i - window. The order is the node-aware one; receives are all posted at once,
// since they wait in their place in the output and cost nothing. Between pairwise rounds (window 1,
// but without waiting for the receive) and everything at once.
//
//   window 2:   ->a   ->b   ->c   ->d          c starts when a has left, d when b has
//                 '-----------^     ^
//                       '-----------'
//
// Executed in rounds (Step::round), `window` sends leave together and the next ones when all of
// them have left.
//
// Asks for counts (member, *) and (*, member). A pair without bytes has no message.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>

namespace piper::collective {

// Requires window >= 1.
MemberSteps all_to_all_windowed(int64_t member, const Topology& topology, const CountOf& count,
                                int64_t window);

}  // namespace piper::collective
