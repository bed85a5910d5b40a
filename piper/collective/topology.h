// Where the members of a group sit: all that an algorithm may know of the machine. Which bytes are
// fast is for prices to say, not for this.
//
//   member      0  1  2  3   4  5  6  7
//   unit[0]     0  0  0  0   1  1  1  1     nodes
//   unit[1]     0  0  0  0   0  0  0  0     switch groups
//   nic         0  0  1  1   0  0  1  1     cards, counted within a node
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace piper::collective {

// By member, 0 .. n-1. Units of a level are numbered 0, 1, ... without gaps, in any order of
// members; two members of one unit share every unit further out. Nodes may hold different numbers
// of members.
struct Topology {
  // [level][member], innermost level first: node, then whatever the machine has (switch group, rack,
  // data centre). Empty: nothing is known, every member is a node of its own.
  std::vector<std::vector<int32_t>> unit;
  // The card of its node through which a member speaks. Empty: one card a node.
  std::vector<int32_t> nic;
};

// Units that member `from` has for member `to`; zero is allowed. Called for those pairs only that an
// algorithm's header names: a member need not know the others.
using CountOf = std::function<int64_t(int64_t from, int64_t to)>;

}  // namespace piper::collective
