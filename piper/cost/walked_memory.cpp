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

class StepWalk {
 public:
  StepWalk(const schedule::StepGraph& step, const StepBytes& bytes) : step_(step), bytes_(bytes) {
    int32_t last = -1;
    for (const graph::Slot& slot : step.graph.slots()) last = std::max(last, slot.micro_batch);
    kept_of_.resize(static_cast<size_t>(int64_t{last} + 2));
  }

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

  void add(SlotId slot) { count(slot, bytes(slot)); }
  void release(const Task& task) {
    for (const SlotId slot : step_.graph.frees(task)) count(slot, -bytes(slot));
  }
  void count(SlotId slot, int64_t more) {
    live_ += more;
    const schedule::SlotMeaning& meaning = step_.meaning(slot);
    if (meaning.kind == schedule::SlotKind::kGradients) {
      now_.gradients += more;
    } else if (meaning.kind == schedule::SlotKind::kWeights) {
      now_.weights += more;
    } else {
      part_of(now_.activations, meaning.kind, meaning.segment.kind) += more;
      part_of(kept_of(step_.graph.slots()[slot.index()].micro_batch), meaning.kind,
              meaning.segment.kind) += more;
    }
  }
  // The part of what is live that this micro-batch keeps.
  KeptBytes& kept_of(int32_t micro_batch) {
    return kept_of_[static_cast<size_t>(int64_t{micro_batch} + 1)];
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
    fullest_ = now_;
    fullest_.activations += kept_of(micro_batch) * -1;
    fullest_.working = most_ - fullest_.activations.total() - fullest_.gradients - fullest_.weights;
  }

  const schedule::StepGraph& step_;
  const StepBytes& bytes_;
  StageMemory now_;                 // what is live: weights, gradients; all else as activations
  std::vector<KeptBytes> kept_of_;  // by micro-batch + 1: those of them that are its own
  std::vector<graph::TaskId> in_flight_;
  std::map<TaskId, std::vector<TaskId>> ahead_;  // gathers, by what they wait for
  int64_t live_ = 0, most_ = 0;
  int64_t host_ = 0, most_host_ = 0;  // of activations
  StageMemory fullest_;
};

}  // namespace

StageMemory walked_memory(const schedule::StepGraph& step, const StepBytes& bytes) {
  return StepWalk(step, bytes).run();
}

int64_t micro_batches_to_walk(const strategy::Strategy& s) {
  // States that come from the host for the update are the most of a few micro-batches, not of many.
  constexpr int64_t kFew = 8;
  if (s.schedule == strategy::PipelineSchedule::kGPipe)
    return strategy::offloads_optimizer(s.offload) ? s.num_micro_batches
                                                   : std::min(s.num_micro_batches, kFew);
  // No other holds more than twice the depth, and those of a step's end add nothing.
  return std::min(s.num_micro_batches, 4 * s.mesh.pp);
}

StageMemory with_more(const StageMemory& before, const StageMemory& last, int64_t more) {
  StageMemory all = last;
  const auto add = [&](int64_t StageMemory::*part) {
    all.*part += more * (last.*part - before.*part);
  };
  for (int64_t StageMemory::*part :
       {&StageMemory::weights, &StageMemory::gradients, &StageMemory::optimizer,
        &StageMemory::working, &StageMemory::messages, &StageMemory::host})
    add(part);
  KeptBytes kept = last.activations;
  kept += before.activations * -1;
  all.activations += kept * more;
  return all;
}

}  // namespace piper::cost
