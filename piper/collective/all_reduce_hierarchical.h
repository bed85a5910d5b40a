// All-reduce in place over nodes: reduce_scatter_hierarchical, then all_gather_hierarchical. R
// times fewer bytes cross than directly, in four hops.
//
// Who owns which share is free here, so the shares are dealt by place first and node second: what a
// member carries for its counterparts is then one piece, and one message goes to each other member
// of the node (even nodes).
//
//   2 nodes of 2:   | a0 | b0 | a1 | b1 |     a0 carries the first half in its node, a1 the second
//
// Every member has the same sum to the bit, in every run: by ascending member in a node, then by
// ascending node. Scratch as in the reduce-scatter.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

namespace piper::collective {

MemberSteps all_reduce_hierarchical(int64_t member, const Topology& topology, int64_t count);

}  // namespace piper::collective
