// All-gather in place over nodes: a share crosses to each remote node once and is spread there,
// where a flat one sends it to every member of the node: R times fewer bytes cross.
//
//   share of a1:   a1 -> a0             inside, straight
//                  a1 -> b1 -> b0       to its counterpart, who hands it on
//
// Everything straight from place to place: no scratch, no copy. Even nodes, N of R members: a
// member sends N - 1 messages of its share beyond, and (R - 1) N inside.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>

namespace piper::collective {

MemberSteps all_gather_hierarchical(int64_t member, const Topology& topology, int64_t count);

}  // namespace piper::collective
