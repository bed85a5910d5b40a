#include <piper/schedule/heads.h>

namespace piper::schedule {

using graph::SlotId;

void write_loss(RankWriter& writer, SlotId x) {
  writer.compute({SegmentKind::kHead, -1}, {.reads = {x}, .frees = {x}});
}

HeadSlots write_head_forward(RankWriter& writer, int32_t layer, SlotId x) {
  const Segment head{SegmentKind::kHead, layer};
  const SlotId tape = writer.slot(SlotKind::kTape, head);
  writer.compute(head, {.reads = {x}, .writes = {tape}});
  return {x, tape};
}

bool gathers_head_gradient(const StepWriter& step) {
  return step.style.divides_ends_by_tokens && step.style.divides_dense_blocks &&
         step.strategy.mesh.tp > 1 && !step.strategy.sequence_parallel;
}

SlotId write_head_backward(RankWriter& writer, int32_t layer, const HeadSlots& head,
                           bool is_joined) {
  const Segment segment{SegmentKind::kHead, layer};
  const SlotId gradient = writer.slot(SlotKind::kHiddenGradient, segment);
  writer.compute(segment, {.reads = {head.x, head.tape},
                           .writes = {gradient},
                           .frees = {is_joined ? SlotId::none() : head.x, head.tape}});
  if (!gathers_head_gradient(writer.step())) return gradient;
  const Segment gather{SegmentKind::kTensor, layer};
  const SlotId whole = writer.slot(SlotKind::kHiddenGradient, gather);
  writer.collective(graph::TaskKind::kAllGather, strategy::Axis::kTensor, gather,
                    {.reads = {gradient}, .writes = {whole}, .frees = {gradient}}, {});
  return whole;
}

SlotId write_join_forward(RankWriter& writer, int32_t layer, SlotId x) {
  const Segment join{SegmentKind::kMtpProjection, layer};
  const SlotId input = writer.slot(SlotKind::kHidden, join);
  writer.compute(join, {.reads = {x}, .writes = {input}});
  return input;
}

SlotId write_join_backward(RankWriter& writer, int32_t layer, SlotId input_gradient,
                           SlotId head_gradient, SlotId x) {
  const Segment join{SegmentKind::kMtpProjection, layer};
  const SlotId gradient = writer.slot(SlotKind::kHiddenGradient, join);
  writer.compute(join, {.reads = {input_gradient, head_gradient, x},
                        .writes = {gradient},
                        .frees = {input_gradient, head_gradient, x}});
  return gradient;
}

}  // namespace piper::schedule
