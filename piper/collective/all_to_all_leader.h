// All-to-all with one leader a node: everything that leaves a node goes by way of its first member,
// one message for each pair of nodes. R^2 fewer messages cross than in a flat exchange; the
// leader's NIC and memory carry the whole node, so that this is for short messages only.
//
//   a0 o<--o a1     a0 ==== all of a's rows for all of b's members ====> b0 o-->o b1
//     gather                      leaders exchange                        scatter
//
// Rows inside a node go straight. Even nodes of R members, M remote ones, D units a pair: a leader
// gathers R - 1 messages of M R D, sends and receives M of R^2 D, scatters R - 1 of M R D.
//
// Asks for counts (member, *) and (*, member), a leader for all of the rows that leave or enter its
// node: leader_counts_told. With a single node this is all_to_all_node_aware.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

MemberSteps all_to_all_leader(int64_t member, const Topology& topology, const CountOf& count);

// The targets t of which member `to` must know count(from, t), ascending.
std::vector<int32_t> leader_counts_told(int64_t from, int64_t to, const Units& nodes);

}  // namespace piper::collective
