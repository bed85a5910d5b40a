#include <piper/schedule/divided_block.h>

namespace piper::schedule {

using graph::TaskKind;

DividedBlock::Whole DividedBlock::gather(LayerProgram& program, LayerPass& pass, LayerSlot slot,
                                         LayerSlot again) const {
  if (!is_shared || !divides_tokens) return {slot, again};
  const LayerSlot gathered = program.slot(SlotKind::kGathered, collective, pass.chunk());
  const LayerSlot more = again.valid() ? program.slot(SlotKind::kGathered, collective, pass.chunk())
                                       : LayerSlot::none();
  pass.collective(TaskKind::kAllGather, collective, {slot, again, counts}, {gathered, more});
  if (splits) pass.compute_part(segment, ComputePart::kBefore);
  return {gathered, more};
}

LayerSlot DividedBlock::partial(LayerProgram& program, LayerSlot result) const {
  return is_shared
             ? program.slot(SlotKind::kPartial, collective, program.slots[result.index()].chunk)
             : result;
}

void DividedBlock::sum(LayerPass& pass, LayerSlot partial, LayerSlot result) const {
  if (!is_shared) return;
  pass.collective(divides_tokens ? TaskKind::kReduceScatter : TaskKind::kAllReduce, collective,
                  {partial, counts}, {result});
  if (splits) pass.compute_part(segment, ComputePart::kBehind);
}

}  // namespace piper::schedule
