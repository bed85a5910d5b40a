// Messages between pipeline stages: the EP members of one stage send to those of the next, pair by
// pair, all at once. A member's message leaves through its own NIC, so that EP concurrent pairs
// use all NICs of a node evenly. Where only some members send, or some send more, a message can be
// spread: cut into one piece for each NIC and handed to a neighbour behind that NIC.
//
//   plain:    a0 =======> b0            spread over 2 NICs:   a0 -------> b0
//   (NIC 0 alone)                                              '-> a1 -------> b1 -'> b0
//
// The input of a member holds its transfers in the order of the list, back to back; its output
// those that arrive for it, in the order of the list. Spreading uses as many NICs as both nodes
// have, starting with sender's and receiver's own; of the members behind another NIC it takes the
// one whose place is the sender's (receiver's) modulo their number. Pieces differ by one unit at
// most. Transfers inside a node go straight. Scratch: the pieces that the member carries for
// others.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <span>

namespace piper::collective {

struct Transfer {
  int32_t from = 0;
  int32_t to = 0;
  int64_t count = 0;
};

// Every member is given the same list. Requires members of the topology, from != to, counts that
// are not negative.
MemberSteps stage_transfer(int64_t member, const Topology& topology,
                           std::span<const Transfer> transfers, bool spread);

}  // namespace piper::collective
