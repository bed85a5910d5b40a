// Proves without a clock that the action lists of all ranks fit together.
#pragma once

#include <piper/schedule/action.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::schedule {

// All lists of a schedule, by rank.
std::vector<std::vector<Action>> all_actions(strategy::PipelineSchedule schedule, int64_t pp,
                                             int64_t num_micro_batches, int64_t vpp = 1);

// One line a problem ("rank 2: B0 of chunk 1 stands before its forward", "deadlock: rank 0 at F1,
// rank 1 at B0"), empty when the lists are executable:
//   - each rank runs every micro-batch of every chunk once forward and once backward, the latter
//     whole or in two parts;
//   - a backward stands behind its forward, a part for the weights behind the part for the input;
//   - when each rank takes its actions in order, and each action waits for what it needs (a forward
//     for the virtual stage before, a backward for its own forward and the virtual stage behind;
//     the two of a pair for what both need), all lists come to their end;
//   - a pair is a forward, then a whole backward, of another micro-batch.
// Only `schedule`'s geometry is used: the lists may come from anywhere.
std::vector<std::string> execution_problems(strategy::PipelineSchedule schedule,
                                            const std::vector<std::vector<Action>>& lists,
                                            int64_t num_micro_batches, int64_t vpp = 1);

// The actions of all ranks in an order in which each stands behind all that it needs, the two of a
// pair next to each other. Requires executable lists (PIPER_CHECK: what they wait for).
struct RankAction {
  int32_t rank;
  Action action;
};
std::vector<RankAction> topological_order(strategy::PipelineSchedule schedule,
                                          const std::vector<std::vector<Action>>& lists,
                                          int64_t num_micro_batches, int64_t vpp = 1);

// "F3", "B3", "I3", "W3"; of a chunk but the first: "F3 of chunk 1".
std::string action_name(const Action& action);

}  // namespace piper::schedule
