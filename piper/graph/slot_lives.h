// Whether every slot is written, read and freed in an order that holds at any speed. A part of
// validate().
#pragma once

#include <piper/graph/graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::graph {

// What must have happened before what on one rank. O(tasks) to build; the graph outlives it; const
// access is thread-safe.
//
// Compute tasks of a rank run one after another, so "which compute tasks have finished" is one
// number, a position on the compute stream. For every communication task w we keep the first
// compute task that cannot start before w has finished; for every task, the last compute task that
// is known to have finished when it starts.
class HappensBefore {
 public:
  explicit HappensBefore(const Graph& graph);
  // a is known to have finished when b starts. Conservative: knowledge that passes through another
  // rank, or from one communication task to another without a compute task or a dependency between,
  // is not seen.
  bool operator()(TaskId a, TaskId b) const;

 private:
  int32_t finished_before(const Task& task, int32_t stream_clock) const;

  const Graph& graph_;
  std::vector<int32_t>
      position_;                // by task: index on the compute stream; communication: see clock_
  std::vector<int32_t> clock_;  // by task: last compute position finished when it starts; -1: none
  std::vector<int32_t>
      first_known_;  // by task: first compute position that starts after it has finished
};

// One line a problem.
std::vector<std::string> slot_problems(const Graph& graph);

}  // namespace piper::graph
