#include <piper/cost/walked_memory.h>

#include <algorithm>
#include <map>
#include <vector>

namespace piper::cost {
namespace {

using graph::SlotId;
using graph::Stream;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;

class Walk {
 public:
  Walk(const schedule::StepGraph& step, const StepBytes& bytes)
      : step_(step), bytes_(bytes), is_live_(step.graph.slots().size()) {}

  StageMemory run() {
    find_ahead();
    start_ahead(TaskId::none());
    for (const Task& task : step_.graph.tasks()) {
      if (gathers_ahead(task)) continue;
      walk(task);
      start_ahead(task.id);
    }
    fullest_.host = most_host_;
    return fullest_;
  }

 private:
  // A gather of weights travels ahead of those who come before it in the graph: it takes memory as
  // soon as what it waits for is done.
  bool gathers_ahead(const Task& task) const {
    return task.kind == TaskKind::kStateCollective && !step_.graph.writes(task).empty();
  }
  void find_ahead() {
    for (const Task& task : step_.graph.tasks()) {
      if (!gathers_ahead(task)) continue;
      TaskId last = TaskId::none();
      for (const TaskId before : step_.graph.dependencies(task))
        if (before.valid() && (!last.valid() || last < before)) last = before;
      ahead_[last].push_back(task.id);
    }
  }
  void start_ahead(TaskId behind) {
    const auto found = ahead_.find(behind);
    if (found == ahead_.end()) return;
    for (const TaskId id : found->second) walk(step_.graph.task(id));
  }

  void walk(const Task& task) {
    for (const TaskId before : step_.graph.dependencies(task)) end(before);
    for (const SlotId slot : step_.graph.writes(task)) add(slot);
    if (task.kind == TaskKind::kHostCopy && task.phase != graph::Phase::kUpdate) {
      for (const SlotId slot : step_.graph.frees(task)) host_ += bytes(slot);
      for (const SlotId slot : step_.graph.writes(task)) host_ -= bytes(slot);
      most_host_ = std::max(most_host_, host_);
    }
    if (task.kind != TaskKind::kCompute) {
      live_ += transient(task);
      in_flight_.push_back(task.id);
      look(0, task.micro_batch);
      return;
    }
    look(transient(task), task.micro_batch);
    release(task);
    end_sends();
  }

  int64_t bytes(SlotId slot) const { return bytes_.slot_bytes[slot.index()]; }
  int64_t transient(const Task& task) const { return bytes_.transient_bytes[task.id.index()]; }

  void add(SlotId slot) {
    is_live_[slot.index()] = 1;
    live_ += bytes(slot);
  }
  void release(const Task& task) {
    for (const SlotId slot : step_.graph.frees(task)) {
      is_live_[slot.index()] = 0;
      live_ -= bytes(slot);
    }
  }

  // An operation, and those posted before it on its stream.
  void end(graph::TaskId until) {
    if (!until.valid() || std::ranges::find(in_flight_, until) == in_flight_.end()) return;
    const Stream stream = step_.graph.task(until).stream;
    std::erase_if(in_flight_, [&](graph::TaskId id) {
      const Task& task = step_.graph.task(id);
      if (task.stream != stream || id > until) return false;
      live_ -= transient(task);
      release(task);
      return true;
    });
  }
  void end_sends() {
    std::erase_if(in_flight_, [&](graph::TaskId id) {
      const Task& task = step_.graph.task(id);
      if (task.kind != TaskKind::kSend) return false;
      release(task);
      return true;
    });
  }

  void look(int64_t beside, int32_t micro_batch) {
    if (live_ + beside <= most_) return;
    most_ = live_ + beside;
    fullest_ = {};
    for (size_t i = 0; i < is_live_.size(); ++i) {
      if (is_live_[i] == 0) continue;
      const schedule::SlotMeaning& meaning = step_.meaning(SlotId(static_cast<int32_t>(i)));
      const bool is_of_gradients = meaning.kind == schedule::SlotKind::kGradients,
                 is_of_weights = meaning.kind == schedule::SlotKind::kWeights;
      if (is_of_gradients) fullest_.gradients += bytes_.slot_bytes[i];
      if (is_of_weights) fullest_.weights += bytes_.slot_bytes[i];
      if (is_of_gradients || is_of_weights || step_.graph.slots()[i].micro_batch == micro_batch)
        continue;
      part_of(fullest_.activations, meaning.kind, meaning.segment.kind) += bytes_.slot_bytes[i];
    }
    fullest_.working = most_ - fullest_.activations.total() - fullest_.gradients - fullest_.weights;
  }

  const schedule::StepGraph& step_;
  const StepBytes& bytes_;
  std::vector<char> is_live_;  // by slot
  std::vector<graph::TaskId> in_flight_;
  std::map<TaskId, std::vector<TaskId>> ahead_;  // gathers, by what they wait for
  int64_t live_ = 0, most_ = 0;
  int64_t host_ = 0, most_host_ = 0;  // of activations
  StageMemory fullest_;
};

}  // namespace

StageMemory walked_memory(const schedule::StepGraph& step, const StepBytes& bytes) {
  return Walk(step, bytes).run();
}

int64_t micro_batches_to_walk(const strategy::Strategy& s) {
  // No schedule but GPipe holds more than twice the depth, and those of a step's end add nothing.
  if (s.schedule == strategy::PipelineSchedule::kGPipe) return s.num_micro_batches;
  return std::min(s.num_micro_batches, 4 * s.mesh.pp);
}

}  // namespace piper::cost
