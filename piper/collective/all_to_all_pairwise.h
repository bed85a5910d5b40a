// All-to-all with uneven counts in n - 1 rounds: in round r member i sends to i + r and receives
// from i - r (modulo n), and enters no round before both are done. What many libraries do with long
// messages; a late member delays everyone.
//
//   round     1      2      3
//   0 of 4   ->1    ->2    ->3
//            3->    2->    1->
//
// Asks for counts (member, *) and (*, member). A pair without bytes has no message; its round ends
// at once. Never more than one send and one receive in flight: executes on a blocking transport.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_to_all_pairwise(int64_t member, const Topology& topology, const CountOf& count);

}  // namespace piper::collective
