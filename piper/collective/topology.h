// Where the members of a group sit: all that an algorithm may know of the machine. Which bytes are
// fast is for prices to say, not for this.
//
//   member      0  1  2  3   4  5  6  7
//   unit[0]     0  0  0  0   1  1  1  1     nodes
//   unit[1]     0  0  0  0   0  0  0  0     switch groups
//   nic         0  0  1  1   0  0  1  1     NICs, counted within a node
#pragma once

#include <piper/base/strong_id.h>
#include <piper/collective/unit_order.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace piper::collective {

// By member, 0 .. n-1. Units of a level are numbered 0, 1, ... without gaps, in any order of
// members; two members of one unit share every unit further out. Nodes may hold different numbers
// of members.
struct Topology {
  // [level][member], innermost level first: node, then whatever the machine has (switch group,
  // rack, data centre). The nodes are always there, since they say how many members there are
  // (`apart` where nothing is known).
  std::vector<std::vector<int32_t>> unit;
  // The NIC of its node through which a member speaks. Empty: one NIC a node.
  std::vector<int32_t> nic;
};

// Units that member `from` has for member `to`; zero is allowed. Called for those pairs only that
// an algorithm's header names: a member need not know the others.
using CountOf = std::function<int64_t(int64_t from, int64_t to)>;

int64_t num_members(const Topology& topology);

// Nothing is known: every member is a node of its own.
Topology apart(int64_t num_members);

// The same number of members in every node, numbered node by node. NIC c of num_nics serves the
// members l of its node with l * num_nics / members_a_node == c: neighbours share one, and the
// loads differ by one member at most. nodes_a_group > 0 adds a level of groups of that many nodes.
Topology even_nodes(int64_t num_nodes, int64_t members_a_node, int64_t num_nics = 1,
                    int64_t nodes_a_group = 0);

// Returns the topology of some members, in the order given: they keep their NICs, and their units
// are numbered anew without gaps.
Topology topology_among(const Topology& all, std::span<const Rank> members);

// All problems of a topology, one line each: levels of different lengths, numbers with gaps or
// below zero, a unit cut apart further out. Empty: sound.
std::vector<std::string> problems(const Topology& topology);

// One level, turned round: who is in a unit, in which place, and in which order units address each
// other. O(members) to make.
class Units {
 public:
  // Beyond the topology's last level all members form one unit.
  Units(const Topology& topology, size_t level);

  int64_t num_members() const { return static_cast<int64_t>(unit_.size()); }
  int64_t num_units() const { return static_cast<int64_t>(first_.size()) - 1; }
  int32_t unit(int64_t member) const { return unit_[member]; }
  int32_t place(int64_t member) const { return place_[member]; }  // in its unit, ascending
  std::span<const int32_t> members(int64_t unit) const {
    return std::span(members_).subspan(first_[unit], first_[unit + 1] - first_[unit]);
  }
  int64_t size(int64_t unit) const { return first_[unit + 1] - first_[unit]; }
  bool together(int64_t a, int64_t b) const { return unit_[a] == unit_[b]; }

  // The member of `unit` to whom `member` speaks for all of it: the one in the same place, or where
  // that unit is smaller, in that place modulo its size. NICs of the same number meet.
  int32_t counterpart(int64_t member, int64_t unit) const {
    return members_[first_[unit] + place_[member] % size(unit)];
  }
  // Racks first, where the topology has levels further out.
  const UnitOrder& order() const { return order_; }
  // The member's node among those of its unit, 0, 1, ...: it begins so many units further on in
  // their order, so that the nodes of a switch group or rack speak to different ones.
  int32_t turn(int64_t member) const { return turn_.empty() ? 0 : turn_[member]; }
  // The members of `unit` whose counterpart in `other`'s unit is `other`, ascending.
  std::vector<int32_t> speaking_to(int64_t other, int64_t unit) const;

 private:
  std::vector<int32_t> unit_, place_, members_, turn_;
  std::vector<int64_t> first_;  // by unit: where its members begin
  UnitOrder order_;
};

}  // namespace piper::collective
