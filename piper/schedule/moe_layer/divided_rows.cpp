#include <piper/schedule/moe_layer/divided_rows.h>

namespace piper::schedule {

LayerSlot gather_divided_rows(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                              SlotKind slot, LayerSlot rows, LayerSlot routing) {
  if (!kind.divides_rows) return rows;
  const LayerSlot all = program.slot(slot, SegmentKind::kDividedRows, pass.chunk());
  pass.collective(graph::TaskKind::kAllGather, SegmentKind::kDividedRows, {rows, routing}, {all});
  return all;
}

LayerSlot gather_behind_segment(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                                SlotKind slot, LayerSlot own) {
  if (!kind.divides_rows && kind.moe_schedule != strategy::MoeSchedule::kParmS1) return own;
  const LayerSlot all = program.slot(slot, SegmentKind::kTensor);
  pass.collective(graph::TaskKind::kAllGather, SegmentKind::kTensor, {own}, {all});
  return all;
}

}  // namespace piper::schedule
