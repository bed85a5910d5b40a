// All-to-all with uneven counts as it is written without a thought: everybody sends to member 0
// first, then to member 1, ... All posted at once, straight from input to output.
//
//   order of 2 of 4:  0 1 3       order of 3:  0 1 2      (member 0's NIC is everyone's first)
//
// Asks for counts (member, *) and (*, member). A pair without bytes has no message.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_to_all_naive(int64_t member, const Topology& topology, const CountOf& count);

}  // namespace piper::collective
