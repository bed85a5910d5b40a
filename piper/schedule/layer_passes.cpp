#include <piper/base/error.h>
#include <piper/schedule/layer_passes.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace piper::schedule {
namespace {

using SlotSet = std::set<LayerSlot>;
using strategy::Recompute;

bool is_dropped(Recompute recompute, SegmentKind segment) {
  switch (segment) {
    case SegmentKind::kAttention:
    case SegmentKind::kProjection:
    case SegmentKind::kRingStep:
      return strategy::drops_attention(recompute);
    case SegmentKind::kDenseMlp:
    case SegmentKind::kSharedExperts:
    case SegmentKind::kExperts:
      return strategy::drops_experts(recompute);
    default:
      return false;
  }
}

LayerTask task_of(const LayerOperation& operation) {
  return {.kind = operation.kind,
          .segment = operation.segment,
          .group = operation.group,
          .share = operation.share,
          .chunk = operation.chunk,
          .hop = operation.hop,
          .reads = operation.reads,
          .writes = operation.writes,
          .frees = {},
          .is_recomputed = false,
          .is_after_yield = operation.is_after_yield,
          .is_behind_exchange = operation.is_behind_exchange,
          .is_behind_compute = operation.is_behind_compute,
          .is_beside_exchange = false};
}

template <class Keep>
LayerSlotList filtered(const LayerSlotList& slots, Keep keep) {
  LayerSlotList left;
  for (const LayerSlot slot : slots)
    if (slot.valid() && keep(slot)) left.push_back(slot);
  return left;
}

// What a list of tasks reads that it has not written itself.
SlotSet needs(const std::vector<LayerTask>& tasks) {
  SlotSet read, written;
  for (const LayerTask& task : tasks) {
    for (const LayerSlot slot : task.reads)
      if (!written.contains(slot)) read.insert(slot);
    written.insert(task.writes.begin(), task.writes.end());
  }
  return read;
}

// Every slot that lives at the start or is written here ends with its last reader, or else with its
// writer; those of `stays` do not.
void free_slots(std::vector<LayerTask>& tasks, const SlotSet& stays) {
  SlotSet done = stays;
  for (size_t i = tasks.size(); i-- > 0;) {
    LayerTask& task = tasks[i];
    for (const LayerSlotList& list : {task.reads, task.writes})
      for (const LayerSlot slot : list)
        if (done.insert(slot).second) task.frees.push_back(slot);
  }
}

// An exchange is done for sure when a segment reads what it brings, or what is gathered of that.
void mark_exchanges(std::vector<LayerTask>& tasks) {
  std::vector<LayerSlotList> arriving;
  for (LayerTask& task : tasks) {
    const auto is_read = [&](const LayerSlotList& rows) {
      return std::ranges::find_first_of(rows, task.reads) != rows.end();
    };
    if (task.kind == graph::TaskKind::kCompute)
      std::erase_if(arriving, is_read);
    else
      for (LayerSlotList& rows : arriving)
        if (is_read(rows))
          for (const LayerSlot slot : task.writes) rows.push_back(slot);
    task.is_beside_exchange = task.kind == graph::TaskKind::kCompute && !arriving.empty();
    if (task.kind == graph::TaskKind::kAllToAll) arriving.push_back(task.writes);
  }
}

class PassMaker {
 public:
  PassMaker(const LayerProgram& program, Recompute recompute, RecomputeStyle rerun)
      : program_(program), recompute_(recompute), rerun_(rerun) {
    passes_.slots = program.slots;
    passes_.x = program.x;
    passes_.output = program.output;
    passes_.output_gradient = program.output_gradient;
    passes_.x_gradient = program.x_gradient;
    passes_.forward_ends_with_turn = program.forward.ends_with_turn();
  }

  LayerPasses make() {
    passes_.backward = backward();
    const SlotSet wanted = wanted_by_backward();
    SlotSet kept = wanted;
    if (recompute_ == Recompute::kFull) {
      kept = {program_.x};
      for (const LayerSlot slot : wanted)
        if (is_of_layer(slot)) kept.insert(slot);
      passes_.recompute = again(program_.forward.operations(), wanted);
      free_slots(passes_.recompute, wanted);
    }
    passes_.forward = forward(kept);
    kept.insert(program_.x);
    passes_.kept.assign(kept.begin(), kept.end());
    kept.insert(program_.output);
    free_slots(passes_.forward, kept);
    free_slots(passes_.backward, {program_.x_gradient});
    for (std::vector<LayerTask>* pass : {&passes_.forward, &passes_.recompute, &passes_.backward})
      mark_exchanges(*pass);
    return std::move(passes_);
  }

 private:
  bool is_tape(LayerSlot slot) const { return passes_.slots[slot.index()].kind == SlotKind::kTape; }
  bool is_of_layer(LayerSlot slot) const {
    return passes_.slots[slot.index()].kind == SlotKind::kKept;
  }

  std::vector<LayerTask> backward() {
    std::vector<LayerTask> tasks;
    bool is_after_yield = false;  // of what was left out
    const auto add = [&](const LayerTask& task) {
      tasks.push_back(task);
      tasks.back().is_after_yield |= std::exchange(is_after_yield, false);
    };
    const auto run_again = [&](const LayerOperation& operation) {
      if (recompute_ == Recompute::kFull || !is_dropped(recompute_, operation.segment)) return;
      for (const LayerTask& task : tape_again(operation.segment, operation.chunk)) add(task);
    };
    const std::vector<LayerOperation>& operations = program_.backward.operations();
    for (const LayerOperation& operation : operations)
      if (operation.runs_again && rerun_.first) run_again(operation);
    for (const LayerOperation& operation : operations) {
      if (operation.is_again && is_dropped(recompute_, SegmentKind::kAttention)) continue;
      if (!operation.runs_again) {
        add(task_of(operation));
        continue;
      }
      is_after_yield |= operation.is_after_yield;
      if (!rerun_.first) run_again(operation);
    }
    return tasks;
  }

  // Whether an operation of the forward runs again with a segment: attention's projections and
  // ring steps, and how what they make comes to the other ranks, stand and fall with it.
  static bool is_of(const LayerOperation& operation, SegmentKind segment) {
    if (operation.writes.empty()) return false;
    const bool is_compute = operation.kind == graph::TaskKind::kCompute;
    if (segment == SegmentKind::kAttention &&
        (operation.segment == SegmentKind::kProjection ||
         operation.segment == SegmentKind::kRingStep || operation.segment == SegmentKind::kContext))
      return is_compute || operation.kind == graph::TaskKind::kAllGather || operation.hop > 0;
    return is_compute && operation.segment == segment;
  }
  // What a forward writes for later tasks of the layer's attention alone, as its tape.
  bool is_kept_like_tape(LayerSlot slot) const {
    const SlotKind kind = passes_.slots[slot.index()].kind;
    return is_tape(slot) || kind == SlotKind::kQueries || kind == SlotKind::kKeysAndValues ||
           kind == SlotKind::kHeadOutputs;
  }

  // A segment's forward for its tape alone: what else it writes is there already, and goes to slots
  // of its own.
  std::vector<LayerTask> tape_again(SegmentKind segment, int16_t chunk) {
    std::vector<LayerTask> tasks;
    std::map<LayerSlot, LayerSlot> gathered;
    for (const LayerOperation& operation : program_.forward.operations()) {
      if (!is_of(operation, segment) || operation.chunk != chunk) continue;
      LayerTask task = task_of(operation);
      task.is_recomputed = true;
      task.is_after_yield = false;
      task.share = ComputePart::kWhole;
      task.reads = {};
      for (const LayerSlot slot : operation.reads) {
        const bool is_gathered = passes_.slots[slot.index()].kind == SlotKind::kGathered;
        if (!rerun_.gathers || !is_gathered) {
          task.reads.push_back(slot);
          continue;
        }
        if (!gathered.contains(slot)) gathered.emplace(slot, gather_again(slot, tasks));
        task.reads.push_back(gathered.at(slot));
      }
      task.writes = {};
      for (const LayerSlot slot : operation.writes) {
        if (is_of_layer(slot)) continue;
        if (!is_kept_like_tape(slot)) passes_.slots.push_back(passes_.slots[slot.index()]);
        task.writes.push_back(is_kept_like_tape(slot) ? slot
                                                      : LayerSlot(std::ssize(passes_.slots) - 1));
      }
      tasks.push_back(task);
    }
    return tasks;
  }

  // Adds the forward's gather of `slot`, into a slot of its own.
  LayerSlot gather_again(LayerSlot slot, std::vector<LayerTask>& tasks) {
    const std::vector<LayerOperation>& operations = program_.forward.operations();
    const auto gather = std::ranges::find_if(operations, [&](const LayerOperation& operation) {
      return std::ranges::find(operation.writes, slot) != operation.writes.end();
    });
    PIPER_CHECK(gather != operations.end() && gather->writes.size() == 1, "a slot nobody gathers");
    LayerTask task = task_of(*gather);
    task.is_recomputed = true;
    task.is_after_yield = false;
    const ProgramSlot meaning = passes_.slots[slot.index()];
    passes_.slots.push_back(meaning);
    const LayerSlot again(std::ssize(passes_.slots) - 1);
    task.writes = {again};
    tasks.push_back(task);
    return again;
  }

  SlotSet wanted_by_backward() const {
    SlotSet wanted = needs(passes_.backward);
    wanted.erase(program_.output_gradient);
    return wanted;
  }

  std::vector<LayerTask> forward(const SlotSet& kept) const {
    std::vector<LayerTask> tasks;
    for (const LayerOperation& operation : program_.forward.operations()) {
      tasks.push_back(task_of(operation));
      tasks.back().writes = filtered(
          operation.writes, [&](LayerSlot slot) { return !is_tape(slot) || kept.contains(slot); });
    }
    return tasks;
  }

  // Those of the operations that it takes to write `wanted` from x.
  std::vector<LayerTask> again(const std::vector<LayerOperation>& operations,
                               SlotSet wanted) const {
    std::vector<LayerTask> tasks;
    for (size_t i = operations.size(); i-- > 0;) {
      const LayerOperation& operation = operations[i];
      if (!rerun_.all && std::ranges::none_of(operation.writes, [&](LayerSlot slot) {
            return wanted.contains(slot) && !is_of_layer(slot);
          }))
        continue;
      wanted.insert(operation.reads.begin(), operation.reads.end());
      LayerTask& task = tasks.emplace_back(task_of(operation));
      task.writes = filtered(operation.writes, [&](LayerSlot slot) { return !is_of_layer(slot); });
      task.is_recomputed = true;
      task.is_after_yield = false;
    }
    std::ranges::reverse(tasks);
    return tasks;
  }

  const LayerProgram& program_;
  Recompute recompute_;
  RecomputeStyle rerun_;
  LayerPasses passes_;
};

}  // namespace

LayerPasses passes_of(const LayerProgram& program, Recompute recompute, RecomputeStyle rerun) {
  return PassMaker(program, recompute, rerun).make();
}

void LayerPass::compute(SegmentKind segment, const LayerSlotList& reads,
                        const LayerSlotList& writes, ComputePart share) {
  add({.segment = segment, .share = share, .reads = reads, .writes = writes});
}

void LayerPass::compute_part(SegmentKind segment, ComputePart share) {
  add({.segment = segment, .share = share, .reads = {}, .writes = {}});
}

void LayerPass::exchange_counts(strategy::Axis group, SegmentKind segment,
                                const LayerSlotList& routing) {
  add({.kind = graph::TaskKind::kExchangeCounts,
       .segment = segment,
       .group = group,
       .reads = routing,
       .writes = {}});
}

void LayerPass::all_to_all(strategy::Axis group, SegmentKind segment, const LayerSlotList& reads,
                           const LayerSlotList& writes) {
  add({.kind = graph::TaskKind::kAllToAll,
       .segment = segment,
       .group = group,
       .reads = reads,
       .writes = writes});
}

void LayerPass::all_to_all_behind(strategy::Axis group, SegmentKind segment,
                                  const LayerSlotList& reads, const LayerSlotList& writes) {
  all_to_all(group, segment, reads, writes);
  operations_.back().is_behind_exchange = true;
}

void LayerPass::collective(graph::TaskKind kind, SegmentKind segment, const LayerSlotList& reads,
                           const LayerSlotList& writes) {
  collective_of(axis_of(kind, segment), kind, segment, reads, writes);
}

void LayerPass::collective_of(strategy::Axis group, graph::TaskKind kind, SegmentKind segment,
                              const LayerSlotList& reads, const LayerSlotList& writes) {
  add({.kind = kind, .segment = segment, .group = group, .reads = reads, .writes = writes});
}

void LayerPass::gather_keys_again(const LayerSlotList& reads, const LayerSlotList& writes) {
  collective(graph::TaskKind::kAllGather, SegmentKind::kContext, reads, writes);
  operations_.back().is_again = true;
  operations_.back().is_behind_compute = true;
}

void LayerPass::pass_on(const LayerSlotList& reads, const LayerSlotList& writes,
                        bool is_behind_compute) {
  collective(graph::TaskKind::kRing, SegmentKind::kContext, reads, writes);
  operations_.back().is_behind_compute = is_behind_compute;
}

void LayerPass::run_again(SegmentKind segment) { add({.segment = segment, .runs_again = true}); }

void LayerPass::add(LayerOperation operation) {
  operation.reads = filtered(operation.reads, [](LayerSlot) { return true; });
  operation.writes = filtered(operation.writes, [](LayerSlot) { return true; });
  operation.chunk = chunk_;
  operation.hop = hop_;
  operation.is_after_yield = std::exchange(is_turn_due_, false);
  operations_.push_back(operation);
}

}  // namespace piper::schedule
