#include <piper/graph/operations.h>

#include <algorithm>

namespace piper::graph {
namespace {

bool is_indexed(const Graph& graph, const Task& task) {
  return is_communication(task.kind) && task.operation.valid() &&
         task.operation.value < graph.num_operations();
}

}  // namespace

bool is_communication(TaskKind kind) { return kind != TaskKind::kCompute; }

std::vector<Rank> members(const Graph& graph, const Task& task) {
  switch (task.kind) {
    case TaskKind::kCompute:
      return {};
    case TaskKind::kSend:
    case TaskKind::kReceive:
      return {std::min(task.rank, task.peer), std::max(task.rank, task.peer)};
    case TaskKind::kExchangeCounts:
    case TaskKind::kAllToAll:
    case TaskKind::kAllReduce:
    case TaskKind::kAllGather:
    case TaskKind::kReduceScatter:
    case TaskKind::kRing:
    case TaskKind::kStateCollective:
    case TaskKind::kHostCopy:
      if (!task.group.valid() || task.group.index() >= graph.groups().size()) return {task.rank};
      return graph.group(task.group);
  }
  return {};
}

Operations::Operations(const Graph& graph)
    : first_(graph.num_operations() + 1), num_needed_(graph.num_operations()) {
  for (const Task& task : graph.tasks())
    if (is_indexed(graph, task)) ++first_[task.operation.index() + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  tasks_.resize(first_.back());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (const Task& task : graph.tasks())
    if (is_indexed(graph, task)) tasks_[next[task.operation.index()]++] = task.id;

  std::vector<char> takes_part(graph.num_ranks());
  for (int64_t rank = 0; rank < graph.num_ranks(); ++rank)
    takes_part[rank] = graph.takes_part(Rank(rank));
  const auto is_here = [&](Rank rank) {
    return rank.valid() && rank.value < graph.num_ranks() && takes_part[rank.index()];
  };
  std::vector<int32_t> of_group;
  for (const std::vector<Rank>& group : graph.groups())
    of_group.push_back(static_cast<int32_t>(std::count_if(group.begin(), group.end(), is_here)));
  for (int32_t op = 0; op < graph.num_operations(); ++op) {
    const std::span<const TaskId> ids = tasks(OperationId(op));
    if (ids.empty()) continue;
    const Task& task = graph.task(ids.front());
    if (task.group.valid() && task.group.index() < of_group.size())
      num_needed_[op] = of_group[task.group.index()];
    else
      num_needed_[op] = 1 + static_cast<int32_t>(is_here(task.peer));
  }
}

}  // namespace piper::graph
