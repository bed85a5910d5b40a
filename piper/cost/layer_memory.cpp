#include <piper/cost/layer_memory.h>

#include <algorithm>
#include <vector>

namespace piper::cost {
namespace {

using graph::TaskKind;
using schedule::LayerPasses;
using schedule::LayerSlot;
using schedule::LayerTask;
using schedule::SegmentKind;
using schedule::SlotKind;

class MemoryWalk {
 public:
  MemoryWalk(const model::Model& model, int32_t layer, const SegmentWork& work,
             const LayerPasses& passes, int64_t exchange_scratch)
      : model_(model), layer_(layer), passes_(passes), scratch_(exchange_scratch) {
    int64_t num_chunks = 0;
    for (const schedule::ProgramSlot& slot : passes.slots)
      num_chunks = std::max<int64_t>(num_chunks, slot.chunk);
    for (int64_t chunk = 0; chunk <= num_chunks; ++chunk)
      works_.push_back(work_of_chunk(work, chunk, num_chunks));
  }

  int64_t bytes(LayerSlot slot) const {
    const auto& [kind, writer, chunk, hop] = passes_.slots[slot.index()];
    const SegmentWork& work = works_[static_cast<size_t>(chunk)];
    const schedule::Segment segment{.kind = writer, .layer = layer_, .chunk = chunk, .hop = hop};
    return kind == SlotKind::kTape ? segment_bytes(model_, segment, work).tape
                                   : slot_bytes(model_, {kind, segment}, work);
  }

  // `is_forward`: of a pass whose tasks are all a forward's.
  void append(const std::vector<LayerTask>& tasks, bool is_forward, Stretch& stretch) const {
    for (const LayerTask& task : tasks) {
      for (const LayerSlot slot : task.writes) stretch.allocate(bytes(slot));
      stretch.touch(beside(task, is_forward || task.is_recomputed));
      for (const LayerSlot slot : task.frees) stretch.release(bytes(slot));
    }
  }

 private:
  // Above what is live while a task runs. The parts of a tape that is not kept still exist for a
  // moment.
  int64_t beside(const LayerTask& task, bool is_forward) const {
    if (task.kind == TaskKind::kAllToAll) return scratch_;
    const SegmentWork& work = works_[static_cast<size_t>(task.chunk)];
    if (schedule::moves_rows(task.segment) &&
        (task.kind == TaskKind::kReduceScatter || task.kind == TaskKind::kAllReduce))
      return sum_scratch(model_, {task.segment, layer_}, work);
    if (task.kind != TaskKind::kCompute) return 0;
    const SegmentBytes of = segment_bytes(model_, {task.segment, layer_}, work);
    const int64_t scratch = task.is_beside_exchange ? scratch_ : 0;
    if (!is_forward) return scratch + of.backward_transient;
    bool keeps_tape = false;
    for (const LayerSlot slot : task.writes)
      keeps_tape = keeps_tape || passes_.slots[slot.index()].kind == SlotKind::kTape;
    return scratch + of.forward_transient + (keeps_tape ? 0 : of.tape);
  }

  const model::Model& model_;
  int32_t layer_;
  std::vector<SegmentWork> works_;  // by chunk; first of all
  const LayerPasses& passes_;
  int64_t scratch_;  // of an exchange
};

}  // namespace

int64_t& part_of(KeptBytes& kept, SlotKind kind, SegmentKind writer) {
  if (kind == SlotKind::kHidden || kind == SlotKind::kHiddenGradient) return kept.hidden;
  if (kind == SlotKind::kRouting || kind == SlotKind::kRoutingGradient) return kept.gate;
  if (kind == SlotKind::kQueries || kind == SlotKind::kQueriesGradient ||
      kind == SlotKind::kKeysAndValues || kind == SlotKind::kKeysAndValuesGradient ||
      kind == SlotKind::kHeadOutputs || kind == SlotKind::kHeadOutputsGradient)
    return kept.attention;
  if (kind != SlotKind::kTape && kind != SlotKind::kDeferred) return kept.rows;
  switch (writer) {
    case SegmentKind::kAttention:
    case SegmentKind::kProjection:
      return kept.attention;
    case SegmentKind::kGate:
      return kept.gate;
    case SegmentKind::kExperts:
      return kept.experts;
    case SegmentKind::kHead:
      return kept.head;
    default:
      return kept.dense_mlp;
  }
}

KeptBytes& KeptBytes::operator+=(const KeptBytes& other) {
  hidden += other.hidden;
  attention += other.attention;
  gate += other.gate;
  rows += other.rows;
  experts += other.experts;
  dense_mlp += other.dense_mlp;
  head += other.head;
  return *this;
}

KeptBytes KeptBytes::operator*(int64_t factor) const {
  return {hidden * factor,  attention * factor, gate * factor, rows * factor,
          experts * factor, dense_mlp * factor, head * factor};
}

LayerMemory layer_memory(const model::Model& model, int32_t layer, const SegmentWork& work,
                         const LayerPasses& passes, int64_t exchange_scratch) {
  const MemoryWalk walk(model, layer, work, passes, exchange_scratch);
  LayerMemory memory;
  for (const LayerSlot slot : passes.kept)
    part_of(memory.kept, passes.slots[slot.index()].kind, passes.slots[slot.index()].writer) +=
        walk.bytes(slot);
  walk.append(passes.forward, true, memory.forward);
  walk.append(passes.recompute, true, memory.backward);
  walk.append(passes.backward, false, memory.backward);
  return memory;
}

}  // namespace piper::cost
