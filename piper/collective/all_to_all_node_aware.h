// All-to-all with uneven counts, flat, in node-aware order: one message for every pair, everything
// posted at once, straight from input to output. The strongest flat opponent of anything clever.
//
// Remote nodes first, rotated by node, by racks first where they are known (unit_order.h); within a
// node rotated by place. At every position of the order the members' messages then form a
// permutation (nodes of equal size): no member, and no NIC, is hit by two at once, and no two
// NICs of a node send to the same node's NIC.
//
//   nodes {0 1} {2 3} {4 5}      order of 2:  4 5 | 0 1 | 3        order of 3:  5 4 | 1 0 | 2
//
// Asks for counts (member, *) and (*, member). A pair without bytes has no message.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

// The others in the order in which `member` sends to them; reversed in sign, in which it receives.
std::vector<int32_t> node_aware_targets(int64_t member, const Units& nodes);
std::vector<int32_t> node_aware_sources(int64_t member, const Units& nodes);

MemberSteps all_to_all_node_aware(int64_t member, const Topology& topology, const CountOf& count);

}  // namespace piper::collective
