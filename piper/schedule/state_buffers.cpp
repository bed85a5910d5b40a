#include <piper/schedule/state_buffers.h>
#include <piper/strategy/divided_states.h>
#include <piper/strategy/rank_layout.h>

namespace piper::schedule {
namespace {

using graph::Phase;
using graph::TaskKind;
using strategy::Axis;

// Whether what all ranks of a stage hold is summed over the stage.
bool sums_over_stage(const StepWriter& step) {
  return step.style.divides_ends_by_tokens &&
         strategy::axis_of_whole(step.strategy) == Axis::kStage;
}

bool is_moe(const StepWriter& step, int32_t layer) {
  return layer >= 0 && step.model.layers[static_cast<size_t>(layer)].feed_forward.is_moe();
}

// Which gradients of its layer a segment's backward adds to.
bool adds_to(const StepWriter& step, SegmentKind segment, Phase phase, SegmentKind gradients) {
  const bool is_of_experts = gradients == SegmentKind::kExpertGradients;
  switch (segment) {
    case SegmentKind::kExperts:
      return is_of_experts && phase != Phase::kBackwardInput;
    case SegmentKind::kEmbedding:
    case SegmentKind::kAttention:
    case SegmentKind::kProjection:
    case SegmentKind::kRingStep:
    case SegmentKind::kDenseMlp:
      return !is_of_experts;
    case SegmentKind::kGate:  // held whole by ranks that share matrices
    case SegmentKind::kSharedExperts:
    case SegmentKind::kHead:
    case SegmentKind::kMtpProjection:
      return !is_of_experts &&
             (gradients == SegmentKind::kStageGradients || !sums_over_stage(step));
    case SegmentKind::kUnpermute:
    case SegmentKind::kDenseGradients:
    case SegmentKind::kExpertGradients:
    case SegmentKind::kStageGradients:
    case SegmentKind::kTiedEmbedding:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kStatistics:
    case SegmentKind::kOptimizer:
    case SegmentKind::kTensor:
    case SegmentKind::kRouteOnly:
    case SegmentKind::kSequenceCounts:
    case SegmentKind::kTensorChoices:
    case SegmentKind::kContextChoices:
    case SegmentKind::kExpertTensor:
    case SegmentKind::kExpertTokens:
    case SegmentKind::kDividedRows:
    case SegmentKind::kContext:
    case SegmentKind::kDenseWeights:
    case SegmentKind::kExpertWeights:
    case SegmentKind::kStageWeights:
    case SegmentKind::kCopiedWeights:
    case SegmentKind::kCopiedGradients:
    case SegmentKind::kHostCopy:
    case SegmentKind::kUpdateLayer:
    case SegmentKind::kTakeExpert:
    case SegmentKind::kPutExpert:
    case SegmentKind::kKeepGradients:
    case SegmentKind::kDropWeights:
    case SegmentKind::kWait:
      return false;
  }
  return false;
}

}  // namespace

graph::List<StateBuffer> state_buffers(const StepWriter& step, int32_t layer) {
  graph::List<StateBuffer> buffers;
  const auto add = [&](SegmentKind weights, SegmentKind gradients) {
    if (step.layout.size(axis_of(TaskKind::kAllReduce, gradients)) > 1)
      buffers.push_back({weights, gradients});
  };
  // Nothing of embedding and head is cut: where a stage sums, they have no dense buffer.
  if (sums_over_stage(step)) add(SegmentKind::kStageWeights, SegmentKind::kStageGradients);
  if (layer >= 0 || !sums_over_stage(step))
    add(SegmentKind::kDenseWeights, SegmentKind::kDenseGradients);
  if (is_moe(step, layer)) add(SegmentKind::kExpertWeights, SegmentKind::kExpertGradients);
  return buffers;
}

bool copies_experts(const StepWriter& step, int32_t layer) {
  return step.strategy.redundant_experts > 0 && is_moe(step, layer);
}

bool divides_gradients(const StepWriter& step, int32_t layer) {
  return step.style.states_in_slots &&
         strategy::divides_gradients(step.strategy, step.model, layer);
}

int32_t layer_before_module(const StepWriter& step, int32_t module) {
  return module == step.model.num_layers() ? kHeadLayer : module - 1;
}

graph::List<Segment> divided_gradients_of(const StepWriter& step, const Segment& segment,
                                          Phase phase) {
  graph::List<Segment> added;
  if (step.style.evaluates) return added;
  const auto add = [&](int32_t layer) {
    if (!divides_gradients(step, layer)) return;
    for (const StateBuffer& buffer : state_buffers(step, layer))
      if (adds_to(step, segment.kind, phase, buffer.gradients))
        added.push_back({buffer.gradients, layer});
  };
  const bool is_head = segment.kind == SegmentKind::kHead;
  if (is_head && phase == Phase::kForward) {
    add(step.model.tied_embeddings ? kEmbeddingLayer : kHeadLayer);
    return added;
  }
  if (!graph::is_backward(phase)) return added;
  if (segment.kind == SegmentKind::kEmbedding)
    add(kEmbeddingLayer);
  else
    add(is_head && segment.layer < 0 ? kHeadLayer : segment.layer);
  if (segment.kind == SegmentKind::kMtpProjection && phase != Phase::kBackwardWeights) {
    add(layer_before_module(step, segment.layer));
    add(kEmbeddingLayer);
  }
  return added;
}

}  // namespace piper::schedule
