// All-to-all in two dimensions, inner one first (Tutel's 2DH, HetuMoE's hierarchical all-to-all):
// rows are gathered inside the node by the place of their target, then cross once, a node's rows
// together.
//
//   stage 1, inside:   a_l -> a_q: its rows for all members in place q, the own node included
//   stage 2, NICs:     a_q -> b_q: the rows of all of a's members for b_q
//
//   input of a0    | a0 | a1 | b0 | b1 |       -> a1: | ->a1 | ->b1 |   (packed: they lie apart)
//   a1 then holds  | a0->b1 | a1->b1 |         -> b1, straight into its output
//
// The mirror image of HALO, which crosses first and distributes then: here the *sender's* node
// shares out who crosses by target, so that a hot target is served by one NIC of each node.
//
// Even nodes of R members, N nodes, D units a pair: a member sends R - 1 messages of N D inside and
// N - 1 of R D beyond; scratch 2 (R - 1) N D + (N - 1) R D (packed, arrived, packed again).
// Uneven nodes: who carries a row for b_p is the member in place p modulo the size of the source's
// node.
//
// Asks for counts (member, *), (*, member) and (l, t) for l of the own node and every t that the
// member carries for: two_d_counts_told. With a single node this is all_to_all_node_aware.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

MemberSteps all_to_all_two_d(int64_t member, const Topology& topology, const CountOf& count);

// The targets t of which member `to` must know count(from, t), ascending.
std::vector<int32_t> two_d_counts_told(int64_t from, int64_t to, const Units& nodes);

}  // namespace piper::collective
