// HALO over three levels: node, group of nodes (switch group, rack), beyond. What leaves a group
// crosses its boundary once for each pair (member, other group), is shared out to the group's nodes
// over their nearer links, then inside the nodes. A member sends G - 1 messages beyond its group
// where HALO sends one to every remote node: on thin or distant links between groups fewer, longer
// messages.
//
//   group G                              group H
//   [a0 a1] [b0 b1]                      [c0 c1] [d0 d1]
//      a1 ----- rows for all of H -----> c1                 stage 1: node i of G to node i of H
//                                        c1 --- for d ---> d1             stage 2: inside the group
//                                        c1 -> c0           d1 -> d0      stage 3: inside the nodes
//
// In stage 2 a member also sends its own rows for the other nodes of its group, in the same
// message. In stages 2 and 3 there is one message for each peer, whose rows are packed where they
// lie apart. Rows inside a node go straight.
//
// Who takes in the rows of a member in node i of its group and place p: in node i modulo the number
// of nodes of the other group, place p modulo that node's size. Asks for counts (member, *),
// (*, member), and those that pass through it: three_level_counts_told. A topology without groups
// has one: then there is no stage 1. With a single node this is all_to_all_node_aware.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::collective {

// Who stands where in two levels at once. O(members) to make.
class NodesInGroups {
 public:
  explicit NodesInGroups(const Topology& topology);  // levels 0 and 1

  const Units& nodes() const { return nodes_; }
  const Units& groups() const { return groups_; }
  std::span<const int32_t> nodes_of(int64_t group) const { return nodes_of_[group]; }
  // Who takes in what `member` sends to another group.
  int32_t taker(int64_t member, int64_t group) const;
  // Those of other groups for whom `member` is the taker, ascending.
  std::vector<int32_t> taken_from(int64_t member) const;

 private:
  Units nodes_, groups_;
  std::vector<std::vector<int32_t>> nodes_of_;  // by group
  std::vector<int32_t> index_;                  // by node: its place in its group
};

MemberSteps all_to_all_three_level(int64_t member, const Topology& topology, const CountOf& count,
                                   PhaseOne phase_one = PhaseOne::kUnderTwo);

// The targets t of which member `to` must know count(from, t), ascending.
std::vector<int32_t> three_level_counts_told(int64_t from, int64_t to, const NodesInGroups& where);

}  // namespace piper::collective
