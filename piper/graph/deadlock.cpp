// The dry run: every task starts as soon as the rules allow and takes no time. Because a task that
// can start never stops another from starting, the order in which ranks are advanced does not
// matter: either all tasks finish, or the same ones never do.
#include <fmt/format.h>
#include <piper/graph/operations.h>
#include <piper/graph/print.h>

#include <algorithm>
#include <set>

namespace piper::graph {
namespace {

class DryRun {
 public:
  explicit DryRun(const Graph& graph)
      : graph_(graph),
        operations_(graph),
        started_(graph.tasks().size()),
        finished_(graph.tasks().size()),
        next_(graph.num_ranks() * kNumStreams),
        posted_(graph.num_operations()),
        live_(graph.num_ranks()),
        peak_(graph.num_ranks()) {}

  void simulate() {
    for (int64_t rank = graph_.num_ranks() - 1; rank >= 0; --rank) ranks_.push_back(Rank(rank));
    while (!ranks_.empty()) {
      const Rank rank = ranks_.back();
      ranks_.pop_back();
      while (advance(rank)) {
      }
    }
  }

  const std::vector<int64_t>& peak() const { return peak_; }

  std::string describe_waiting() const {
    const auto stuck = std::find(finished_.begin(), finished_.end(), 0);
    return stuck == finished_.end() ? "" : follow(TaskId(stuck - finished_.begin()));
  }

 private:
  // Starts what can start on the rank; false when nothing could.
  bool advance(Rank rank) {
    bool any = false;
    for (int s = 0; s < kNumStreams; ++s) {
      const std::vector<TaskId>& ids = graph_.stream(rank, static_cast<Stream>(s));
      size_t& next = next_[rank.index() * kNumStreams + s];
      for (; next < ids.size() && dependencies_finished(graph_.task(ids[next])); ++next) {
        start(graph_.task(ids[next]));
        any = true;
      }
    }
    return any;
  }

  bool dependencies_finished(const Task& task) const {
    const std::span<const TaskId> ids = graph_.dependencies(task);
    return std::all_of(ids.begin(), ids.end(), [&](TaskId id) { return finished_[id.index()]; });
  }

  void start(const Task& task) {
    started_[task.id.index()] = 1;
    int64_t& live = live_[task.rank.index()];
    live += static_cast<int64_t>(graph_.writes(task).size());
    peak_[task.rank.index()] = std::max(peak_[task.rank.index()], live);
    if (!is_communication(task.kind)) {
      finish(task);
    } else if (task.operation.valid() && task.operation.value < graph_.num_operations() &&
               ++posted_[task.operation.index()] == operations_.num_needed(task.operation)) {
      for (const TaskId id : operations_.tasks(task.operation)) {
        finish(graph_.task(id));
        ranks_.push_back(graph_.task(id).rank);
      }
    }
  }

  void finish(const Task& task) {
    finished_[task.id.index()] = 1;
    live_[task.rank.index()] -= static_cast<int64_t>(graph_.frees(task).size());
  }

  // Walks from a task that never finishes along what it waits for, until a task comes twice or is
  // missing.
  std::string follow(TaskId id) const {
    std::string text;
    std::set<TaskId> seen;
    while (seen.insert(id).second) {
      const Task& task = graph_.task(id);
      if (!started_[id.index()]) {
        id = blocker_of_start(task);
        continue;
      }
      text += text.empty()
                  ? fmt::format("rank {} waits in {}", task.rank.value, describe(graph_, task))
                  : fmt::format(", which waits in {}", describe(graph_, task));
      const Rank absent = absent_member(task);
      if (!absent.valid()) return text + ", which names no operation that exists";
      const TaskId theirs = task_of(task.operation, absent);
      if (!is_point_to_point(task)) text += fmt::format(" for rank {}", absent.value);
      if (!theirs.valid()) return text + ", which has no task for it";
      id = theirs;
    }
    return text + ", and so the circle closes";
  }

  // Why a task has not started: an unfinished dependency, or the task before it on its stream.
  TaskId blocker_of_start(const Task& task) const {
    for (const TaskId id : graph_.dependencies(task))
      if (!finished_[id.index()]) return id;
    const std::vector<TaskId>& ids = graph_.stream(task.rank, task.stream);
    return ids[next_[task.rank.index() * kNumStreams + static_cast<size_t>(task.stream)]];
  }

  Rank absent_member(const Task& task) const {
    for (const Rank rank : members(graph_, task)) {
      if (!rank.valid() || rank.value >= graph_.num_ranks() || !graph_.takes_part(rank)) continue;
      const TaskId theirs = task_of(task.operation, rank);
      if (!theirs.valid() || !started_[theirs.index()]) return rank;
    }
    return Rank::none();
  }

  TaskId task_of(OperationId operation, Rank rank) const {
    if (!operation.valid() || operation.value >= graph_.num_operations()) return TaskId::none();
    for (const TaskId id : operations_.tasks(operation))
      if (graph_.task(id).rank == rank) return id;
    return TaskId::none();
  }

  static bool is_point_to_point(const Task& task) {
    return task.kind == TaskKind::kSend || task.kind == TaskKind::kReceive;
  }

  const Graph& graph_;
  Operations operations_;
  std::vector<char> started_, finished_;  // by task
  std::vector<size_t> next_;              // by rank and stream: index of the next task to start
  std::vector<int32_t> posted_;           // by operation
  std::vector<int64_t> live_, peak_;      // slots by rank
  std::vector<Rank> ranks_;               // to be advanced
};

}  // namespace

std::string find_deadlock(const Graph& graph, std::vector<int64_t>* peak_slots) {
  DryRun run(graph);
  run.simulate();
  if (peak_slots != nullptr) *peak_slots = run.peak();
  return run.describe_waiting();
}

}  // namespace piper::graph
