// Parm's eq. 3 and 5 by where the groups lie (section IV-B, cases 1 to 4): one exchange over EP and
// ESP takes no longer than the gather (or the reduce-scatter) over ESP and then the all-to-all over
// EP. Bytes alone, without start-ups: a rank's links inside its node and its way out of it work at
// the same time, and the slowest rank counts.
//
// Section IV says that beta_intra > beta_inter are speeds; everywhere else beta is the time of an
// element. Here they are times. Pure functions, thread-safe.
#pragma once

#include <cstdint>

namespace piper::studies::paper::parm {

// N_EP x N_ESP ranks, numbered with one of the two groups inside, node after node.
struct Grid {
  int64_t ep = 1, esp = 1;
  int64_t ranks_per_node = 1;
  bool is_esp_inside = true;  // members of an ESP group are neighbours; else those of an EP group
};

// Seconds of an element that one rank sends.
struct LinkTimes {
  double inside = 0, across = 0;  // of a node
};

enum class PlacementCase : uint8_t { kOneNode, kEspInNode, kEpInNode, kOther };
PlacementCase case_of(const Grid& grid);  // the first that holds

// `elements` is the x of eq. 3: what a rank sends to all members of the group, itself included.
double fused_all_to_all_seconds(const Grid& grid, const LinkTimes& links, double elements);
double ep_all_to_all_seconds(const Grid& grid, const LinkTimes& links, double elements);
// `elements` is what a rank has afterwards; a reduce-scatter of so many moves the same.
double esp_all_gather_seconds(const Grid& grid, const LinkTimes& links, double elements);

}  // namespace piper::studies::paper::parm
