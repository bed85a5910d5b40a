#include <piper/schedule/layer.h>
#include <piper/schedule/layer_kind.h>

namespace piper::schedule {

using graph::TaskId;
using graph::TaskKind;

const LayerPasses& passes_of(const StepWriter& step, int32_t layer, int64_t pp_rank) {
  return layer_passes(
      layer_kind(step.model.layers[static_cast<size_t>(layer)], step.strategy, step.style),
      step.strategy.recompute_of(pp_rank));
}

SlotMeaning meaning(const LayerPasses& passes, LayerSlot slot, int32_t layer) {
  const ProgramSlot& in_program = passes.slots[slot.index()];
  return {in_program.kind,
          {.kind = in_program.writer,
           .layer = layer,
           .chunk = in_program.chunk,
           .hop = in_program.hop}};
}

void write_layer_task(RankWriter& writer, const LayerPasses& passes, const LayerTask& task,
                      int32_t layer, LayerSlots& slots, PendingTasks& posted) {
  Slots lists;
  for (const LayerSlot slot : task.reads) lists.reads.push_back(slots[slot]);
  for (const LayerSlot slot : task.writes) {
    const SlotMeaning of = meaning(passes, slot, layer);
    lists.writes.push_back(slots[slot] = writer.slot(of.kind, of.segment));
  }
  for (const LayerSlot slot : task.frees) lists.frees.push_back(slots[slot]);
  const Segment segment{.kind = task.segment,
                        .layer = layer,
                        .share = task.share,
                        .chunk = task.chunk,
                        .hop = task.hop};
  if (task.kind == TaskKind::kCompute) {
    if (task.share == ComputePart::kWhole || task.share == ComputePart::kRest)
      writer.wait_for(posted);
    else
      writer.wait_for_earlier(posted);
    posted.computed = writer.compute(segment, lists);
    return;
  }
  const bool in_order = writer.step().style.in_order;
  graph::List<TaskId> after = in_order ? posted.all() : posted.earlier;
  after.push_back(posted.counts);
  if (task.is_behind_exchange) after.push_back(posted.exchange);
  if (task.is_behind_compute) after.push_back(posted.computed);
  const TaskId written = writer.collective(task.kind, task.group, segment, lists, after);
  posted.counts = task.kind == TaskKind::kExchangeCounts ? written : TaskId::none();
  if (task.kind == TaskKind::kAllToAll) posted.exchange = written;
  if (!in_order) return;
  posted.wait_for(posted.latest);
  posted.latest = written;
}

SlotMeaning layer_output(const StepWriter& step, int32_t layer) {
  const LayerPasses& of = passes_of(step, layer, 0);
  return meaning(of, of.output, layer);
}

SlotMeaning layer_input_gradient(const StepWriter& step, int32_t layer) {
  const LayerPasses& of = passes_of(step, layer, 0);
  return meaning(of, of.x_gradient, layer);
}

}  // namespace piper::schedule
