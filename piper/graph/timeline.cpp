#include <piper/graph/timeline.h>

#include <algorithm>

namespace piper::graph {

double Timeline::seconds() const {
  double last = 0;
  for (const Interval& task : tasks) last = std::max(last, task.end_seconds);
  return last;
}

std::vector<TaskId> start_order(const Graph& graph, const Timeline& timeline, Rank rank,
                                Stream stream) {
  std::vector<TaskId> ids;
  for (const TaskId id : graph.stream(rank, stream))
    if (timeline.tasks[id.index()].has_run()) ids.push_back(id);
  std::stable_sort(ids.begin(), ids.end(), [&](TaskId a, TaskId b) {
    return timeline.tasks[a.index()].start_seconds < timeline.tasks[b.index()].start_seconds;
  });
  return ids;
}

}  // namespace piper::graph
