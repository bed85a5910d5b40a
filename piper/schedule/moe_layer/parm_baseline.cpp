#include <piper/schedule/moe_layer/parm_baseline.h>

namespace piper::schedule {

LayerSlot gather_tokens(LayerProgram& program, LayerPass& pass, const LayerKind& kind,
                        LayerSlot own) {
  if (!kind.gathers_tokens) return own;
  const LayerSlot all = program.slot(SlotKind::kGathered, SegmentKind::kExpertTokens);
  pass.collective(graph::TaskKind::kAllGather, SegmentKind::kExpertTokens, {own}, {all});
  return all;
}

}  // namespace piper::schedule
