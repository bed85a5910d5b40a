#include <fmt/format.h>
#include <piper/graph/operations.h>
#include <piper/graph/print.h>
#include <piper/graph/slot_lives.h>

#include <algorithm>
#include <limits>

namespace piper::graph {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

class SlotCheck {
 public:
  explicit SlotCheck(const Graph& graph)
      : graph_(graph),
        before_(graph),
        writer_(graph.slots().size(), TaskId::none()),
        freer_(graph.slots().size(), TaskId::none()) {}

  std::vector<std::string> problems() {
    for (const Task& task : graph_.tasks()) {
      for (const SlotId slot : graph_.writes(task)) note(slot, task, writer_, "written");
      for (const SlotId slot : graph_.frees(task)) note(slot, task, freer_, "freed");
    }
    for (const Task& task : graph_.tasks())
      for (const SlotId slot : graph_.reads(task)) check_read(slot, task);
    for (size_t i = 0; i < writer_.size(); ++i) check_life(SlotId(i));
    return std::move(lines_);
  }

 private:
  bool is_here(SlotId slot, const Task& task) {
    if (slot.index() >= graph_.slots().size()) {
      lines_.push_back(
          fmt::format("{} names slot {}, which does not exist", title(task), slot.value));
      return false;
    }
    if (graph_.slot(slot).rank != task.rank) {
      lines_.push_back(fmt::format("{} names slot {}, which lies on rank {}", title(task),
                                   slot.value, graph_.slot(slot).rank.value));
      return false;
    }
    return true;
  }

  void note(SlotId slot, const Task& task, std::vector<TaskId>& by, const char* what) {
    if (!is_here(slot, task)) return;
    TaskId& first = by[slot.index()];
    if (first.valid())
      lines_.push_back(fmt::format("slot {} is {} twice: by {} and by {}", slot.value, what,
                                   title(graph_.task(first)), title(task)));
    else
      first = task.id;
  }

  void check_read(SlotId slot, const Task& task) {
    if (!is_here(slot, task)) return;
    const TaskId writer = writer_[slot.index()];
    const TaskId freer = freer_[slot.index()];
    if (writer.valid() && !before_(writer, task.id))
      lines_.push_back(
          fmt::format("slot {} is read by {}, which may start before {} has written it", slot.value,
                      title(task), title(graph_.task(writer))));
    if (freer.valid() && freer != task.id && !before_(task.id, freer))
      lines_.push_back(fmt::format("slot {} is freed by {}, which may start before {} has read it",
                                   slot.value, title(graph_.task(freer)), title(task)));
  }

  void check_life(SlotId slot) {
    const TaskId writer = writer_[slot.index()];
    const TaskId freer = freer_[slot.index()];
    if (!writer.valid()) lines_.push_back(fmt::format("slot {} is never written", slot.value));
    if (!freer.valid()) lines_.push_back(fmt::format("slot {} is never freed", slot.value));
    if (writer.valid() && freer.valid() && writer != freer && !before_(writer, freer))
      lines_.push_back(
          fmt::format("slot {} is freed by {}, which may start before {} has written it",
                      slot.value, title(graph_.task(freer)), title(graph_.task(writer))));
  }

  std::string title(const Task& task) const {
    return fmt::format("#{} {} of rank {}", task.id.value, describe(graph_, task), task.rank.value);
  }

  const Graph& graph_;
  HappensBefore before_;
  std::vector<TaskId> writer_, freer_;  // by slot
  std::vector<std::string> lines_;
};

}  // namespace

HappensBefore::HappensBefore(const Graph& graph)
    : graph_(graph),
      position_(graph.tasks().size(), -1),
      clock_(graph.tasks().size(), -1),
      first_known_(graph.tasks().size(), kNever) {
  std::vector<int32_t> stream_clock(graph.num_ranks() * kNumStreams, -1);
  for (const Task& task : graph.tasks()) {
    int32_t& clock =
        stream_clock[task.rank.index() * kNumStreams + static_cast<size_t>(task.stream)];
    const size_t i = task.id.index();
    clock_[i] = clock = finished_before(task, clock);
    if (task.kind == TaskKind::kCompute) {
      // The next compute task starts after this one has finished.
      position_[i] = ++clock;
    }
  }
  // first_started: the first compute position that starts after a task of this stream, or a later
  // one, has started.
  std::vector<int32_t> first_started(graph.num_ranks() * kNumStreams, kNever);
  for (auto task = graph.tasks().rbegin(); task != graph.tasks().rend(); ++task) {
    const size_t i = task->id.index();
    int32_t& started =
        first_started[task->rank.index() * kNumStreams + static_cast<size_t>(task->stream)];
    started = task->kind == TaskKind::kCompute ? position_[i] : std::min(started, first_known_[i]);
    for (const TaskId dependency : graph.dependencies(*task))
      first_known_[dependency.index()] = std::min(first_known_[dependency.index()], started);
  }
}

int32_t HappensBefore::finished_before(const Task& task, int32_t stream_clock) const {
  int32_t clock = stream_clock;
  for (const TaskId id : graph_.dependencies(task))
    clock = std::max({clock, clock_[id.index()], position_[id.index()]});
  return clock;
}

bool HappensBefore::operator()(TaskId a, TaskId b) const {
  const Task& first = graph_.task(a);
  const Task& second = graph_.task(b);
  if (first.rank != second.rank || b <= a) return false;
  const bool a_computes = first.kind == TaskKind::kCompute;
  if (second.kind == TaskKind::kCompute)
    return a_computes ? position_[a.index()] < position_[b.index()]
                      : first_known_[a.index()] <= position_[b.index()];
  // Along dependencies between communication tasks, each visited once.
  const int32_t known = a_computes ? position_[a.index()] : first_known_[a.index()];
  std::vector<TaskId> open{b}, seen{b};
  while (!open.empty()) {
    const TaskId at = open.back();
    open.pop_back();
    if (clock_[at.index()] >= known) return true;
    for (const TaskId dependency : graph_.dependencies(graph_.task(at))) {
      if (dependency == a) return true;
      if (dependency < a || !is_communication(graph_.task(dependency).kind) ||
          std::ranges::find(seen, dependency) != seen.end())
        continue;
      open.push_back(dependency);
      seen.push_back(dependency);
    }
  }
  return false;
}

std::vector<std::string> slot_problems(const Graph& graph) { return SlotCheck(graph).problems(); }

}  // namespace piper::graph
