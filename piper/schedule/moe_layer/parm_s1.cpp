#include <piper/schedule/moe_layer/parm_s1.h>
#include <piper/schedule/moe_layer/plain.h>

namespace piper::schedule {

LayerSlot write_parm_s1_mixture(LayerProgram& p, const LayerKind& kind, LayerSlot x1) {
  const LayerSlot g_own = write_plain_mixture(p, kind, x1), own = p.output;
  p.output = p.slot(SlotKind::kHidden, SegmentKind::kTensor);
  p.forward.collective(graph::TaskKind::kAllGather, SegmentKind::kTensor, {own}, {p.output});
  const LayerSlot g_x1 = p.slot(SlotKind::kHiddenGradient, SegmentKind::kTensor);
  p.backward.collective(graph::TaskKind::kAllGather, SegmentKind::kTensor, {g_own}, {g_x1});
  return g_x1;
}

}  // namespace piper::schedule
