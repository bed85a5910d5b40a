// The tasks of every operation, and how many each needs: what checks, simulator and executor
// start from.
#pragma once

#include <piper/graph/graph.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::graph {

// An index over a graph, O(tasks) to build; the graph outlives it. Const access is thread-safe.
// Communication tasks whose operation or group does not exist are in no operation (validate() names
// them).
class Operations {
 public:
  explicit Operations(const Graph& graph);

  // In order of their ids.
  std::span<const TaskId> tasks(OperationId id) const {
    return {tasks_.data() + first_[id.index()], first_[id.index() + 1] - first_[id.index()]};
  }
  // The ranks that must post before the operation can run: both ends, or all members of the group;
  // of those, the ones that take part in this graph.
  int64_t num_needed(OperationId id) const { return num_needed_[id.index()]; }

 private:
  std::vector<size_t> first_;  // by operation, one more at the end
  std::vector<TaskId> tasks_;
  std::vector<int32_t> num_needed_;
};

// The ranks that an operation of this task ties together: both ends, or the group.
std::vector<Rank> members(const Graph& graph, const Task& task);

bool is_communication(TaskKind kind);

}  // namespace piper::graph
