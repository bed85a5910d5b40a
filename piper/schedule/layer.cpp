#include <piper/schedule/layer.h>
#include <piper/schedule/layer_kind.h>

namespace piper::schedule {
namespace {

using graph::Phase;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;

const LayerPasses& passes(const StepWriter& step, int32_t layer) {
  return layer_passes(layer_kind(step.model.layers[static_cast<size_t>(layer)], step.strategy),
                      step.strategy.recompute);
}

SlotMeaning meaning(const LayerPasses& passes, LayerSlot slot, int32_t layer) {
  const ProgramSlot& in_program = passes.slots[slot.index()];
  return {in_program.kind, {in_program.writer, layer}};
}

void write_task(RankWriter& writer, const LayerPasses& passes, const LayerTask& task, int32_t layer,
                LayerSlots& slots, TaskId& counts) {
  Slots lists;
  for (const LayerSlot slot : task.reads) lists.reads.push_back(slots[slot]);
  for (const LayerSlot slot : task.writes) {
    const auto [kind, segment] = meaning(passes, slot, layer);
    lists.writes.push_back(slots[slot] = writer.slot(kind, segment));
  }
  for (const LayerSlot slot : task.frees) lists.frees.push_back(slots[slot]);
  const Segment segment{task.segment, layer};
  if (task.kind == TaskKind::kCompute) {
    writer.compute(segment, lists);
    return;
  }
  const TaskId written = writer.collective(task.kind, task.group, segment, lists, {counts});
  counts = task.kind == TaskKind::kExchangeCounts ? written : TaskId::none();
}

void write_tasks(RankWriter& writer, const LayerPasses& passes, const std::vector<LayerTask>& tasks,
                 int32_t layer, LayerSlots& slots) {
  TaskId counts = TaskId::none();
  const Phase phase = writer.phase();
  for (const LayerTask& task : tasks) {
    writer.begin(task.is_recomputed ? Phase::kRecompute : phase, writer.micro_batch());
    write_task(writer, passes, task, layer, slots, counts);
  }
  writer.begin(phase, writer.micro_batch());
}

}  // namespace

SlotId write_layer_forward(RankWriter& writer, int32_t layer, SlotId x, LayerSlots& slots) {
  const LayerPasses& of = passes(writer.step(), layer);
  slots[of.x] = x;
  write_tasks(writer, of, of.forward, layer, slots);
  return slots[of.output];
}

void write_layer_recompute(RankWriter& writer, int32_t layer, LayerSlots& slots) {
  const LayerPasses& of = passes(writer.step(), layer);
  write_tasks(writer, of, of.recompute, layer, slots);
}

SlotId write_layer_backward(RankWriter& writer, int32_t layer, SlotId output_gradient,
                            LayerSlots& slots) {
  const LayerPasses& of = passes(writer.step(), layer);
  slots[of.output_gradient] = output_gradient;
  write_tasks(writer, of, of.backward, layer, slots);
  return slots[of.x_gradient];
}

SlotMeaning layer_output(const StepWriter& step, int32_t layer) {
  const LayerPasses& of = passes(step, layer);
  return meaning(of, of.output, layer);
}

SlotMeaning layer_input_gradient(const StepWriter& step, int32_t layer) {
  const LayerPasses& of = passes(step, layer);
  return meaning(of, of.x_gradient, layer);
}

}  // namespace piper::schedule
