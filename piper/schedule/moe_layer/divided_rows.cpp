#include <piper/schedule/moe_layer/divided_rows.h>

namespace piper::schedule {

LayerSlot gather_divided_rows(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                              SlotKind slot, LayerSlot rows, LayerSlot routing) {
  if (!kind.divides_rows) return rows;
  const LayerSlot all = program.slot(slot, SegmentKind::kDividedRows, pass.chunk());
  pass.collective(graph::TaskKind::kAllGather, SegmentKind::kDividedRows, {rows, routing}, {all});
  return all;
}

}  // namespace piper::schedule
