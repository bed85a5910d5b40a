// Reduce-scatter in place over nodes: values are added inside each node first, so that one partial
// sum crosses where a flat one sends a node's values one by one: R times fewer bytes.
//
//   stage 1, inside   every share is carried by one member of each node: the one in its owner's
//                     place. It receives its node's values and adds them by ascending member.
//   stage 2, NICs     the carriers send their node's sum to the owner, who adds the nodes' sums by
//                     ascending node
//
//   share of b1:   a0 -> a1 (x_a0 + x_a1) --.
//                  b0 -> b1 (x_b0 + x_b1) ---> b1: (node a) + (node b)
//
// A sum of sums: fixed, bit-equal in every run, not to the ascending sum. Even nodes, N of R
// members: a member sends (R - 1) / R of the data inside and (N - 1) / N of 1 / R beyond. Shares
// that lie next to each other and are carried by the same member go in one message. Scratch: R - 1
// times what the member carries, and N - 1 times its own share.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>

namespace piper::collective {

MemberSteps reduce_scatter_hierarchical(int64_t member, const Topology& topology, int64_t count);

}  // namespace piper::collective
