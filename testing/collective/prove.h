// Proves an algorithm for all members at once, block by block, and counts what it costs: messages
// and units by level and NIC, scratch, copies. Large cases are proven in seconds: 2,048 members
// that all speak to each other, 10,000 that speak to some. verify.h is the plain oracle, element by
// element.
#pragma once

#include <piper/collective/topology.h>
#include <testing/collective/symbolic_executor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::collective {

struct Traffic {
  int64_t messages = 0;
  int64_t units = 0;
  bool operator==(const Traffic&) const = default;
};

// One NIC of one node.
struct NicTraffic {
  Traffic out, in;
};

struct Proof {
  std::vector<std::string> problems;  // the first ones; empty = proven
  // Between members by the innermost level that they share: [0] inside a node, [1] inside a unit of
  // level 1 and not of level 0, ...; the last one: beyond every level.
  std::vector<Traffic> by_level;
  std::vector<std::vector<NicTraffic>> nics;  // [node][NIC]: messages that leave or enter the node
  int64_t max_scratch = 0;                    // units, of one member
  int64_t copied = 0;  // units that copies and additions move inside members, all members
  int64_t num_steps = 0;
};

using StepsOf = std::function<MemberSteps(int64_t member)>;

// Every unit of the output is the right one (from member 0 first, back to back) and was written
// once.
Proof prove_all_to_all(const Topology& topology, const StepsOf& steps, const CountOf& count);

// What a member's output must hold from `offset` on when all has been executed.
struct Expected {
  int64_t offset = 0;
  Piece piece;
};
using ExpectedOf = std::function<std::vector<Expected>(int64_t member, Sums& sums)>;

// Anything else. `in_place`: the output holds the member's elements at the start.
Proof prove(const Topology& topology, const StepsOf& steps, bool in_place,
            const ExpectedOf& expected);

// The same steps for one who blocks: it posts no more than the steps of one round (the longest run
// of the list in which none waits for another) and enters no round before the last is done. What is
// proven of these lists holds for a member with a single thread and blocking calls.
MemberSteps in_rounds(const MemberSteps& member);

}  // namespace piper::collective
