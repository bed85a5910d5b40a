// The point-to-point pass: puts the sends and receives between virtual stages into a list of
// compute-only actions.
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

struct Item {
  enum class Kind : uint8_t { kReceive, kCompute, kSend } kind;
  Action action;  // the action that needs what is received, computes, or made what is sent
  bool operator==(const Item&) const = default;
};

// Where the chunks of a pipeline lie. The default: one a rank.
struct PipelineLayout {
  int64_t pp = 1;
  int64_t vpp = 1;
  strategy::PipelineSchedule schedule = strategy::PipelineSchedule::k1F1B;
};

// The virtual stage that the action needs something from: the one before for a forward, the one
// behind for a backward or its input's part; -1 at the pipeline's ends and for a weights' part.
// What it makes is for the other neighbour.
int64_t virtual_stage_before(const Action& action, const PipelineLayout& placing, int64_t rank);
int64_t virtual_stage_after(const Action& action, const PipelineLayout& placing, int64_t rank);

// The rank of these, -1 also where it is the same: between two chunks of one rank nothing travels.
int64_t rank_received_from(const Action& action, const PipelineLayout& placing, int64_t rank);
int64_t rank_sent_to(const Action& action, const PipelineLayout& placing, int64_t rank);

// A send follows its action. A receive is posted one action ahead: it stands right behind action
// j-2 of the action j that needs it, so it is in flight during action j-1 and at most one buffer
// waits for each direction.
//
//   actions         F0     F1     B0     F2 ...       of stage 1 of 3
//   items    rF0 rF1 F0 sF0 rB0 F1 sF1 rF2 B0 sB0 ...
//
// The two of a pair (Action::pairs_with_next) are one action in this: what the next pair needs is
// in flight during all of this one.
std::vector<Item> insert_transfers(const std::vector<Action>& actions,
                                   const PipelineLayout& placing, int64_t rank);
std::vector<Item> insert_transfers(const std::vector<Action>& actions, int64_t pp, int64_t stage);

}  // namespace piper::schedule
