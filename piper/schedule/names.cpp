#include <fmt/format.h>
#include <piper/schedule/step.h>

namespace piper::schedule {
namespace {

char letter(graph::Phase phase) {
  switch (phase) {
    case graph::Phase::kForward:
      return 'F';
    case graph::Phase::kRecompute:
      return 'R';
    case graph::Phase::kBackward:
      return 'B';
    case graph::Phase::kBackwardInput:
      return 'I';
    case graph::Phase::kBackwardWeights:
      return 'W';
    case graph::Phase::kUpdate:
      return 'U';
  }
  return '?';
}

std::string place(const StepGraph& step, const graph::Task& task) {
  const Segment& segment = step.segment(task);
  if (segment.layer >= 0) return fmt::format(" L{}", segment.layer);
  const bool is_of_ends =
      segment.kind == SegmentKind::kDenseGradients || segment.kind == SegmentKind::kDenseWeights ||
      segment.kind == SegmentKind::kStageGradients || segment.kind == SegmentKind::kStageWeights ||
      segment.kind == SegmentKind::kKeepGradients || segment.kind == SegmentKind::kDropWeights ||
      segment.kind == SegmentKind::kUpdateLayer ||
      (segment.kind == SegmentKind::kHostCopy &&  // of optimizer states
       !(step.graph.reads(task).empty() && step.graph.writes(task).empty()));
  if (!is_of_ends) return "";
  if (segment.share == ComputePart::kRest) return "";
  return segment.layer == -1 ? " embedding" : " head";
}

// Exchanges of the gate's rows go to the experts, those of the experts' rows come back.
const char* what(const StepGraph& step, const graph::Task& task) {
  const Segment& segment = step.segment(task);
  switch (task.kind) {
    case graph::TaskKind::kExchangeCounts:
      return segment.kind == SegmentKind::kExpertTensor ? "shared counts" : "counts";
    case graph::TaskKind::kAllToAll:
      return segment.kind == SegmentKind::kGate ? "dispatch" : "combine";
    case graph::TaskKind::kRing:
      return step.meaning(step.graph.writes(task)[0]).kind == SlotKind::kKeysAndValuesGradient
                 ? "keys and values gradient"
                 : name(segment.kind);
    case graph::TaskKind::kHostCopy:
      return step.graph.writes(task).empty() ? "to the host" : "from the host";
    case graph::TaskKind::kCompute:
    case graph::TaskKind::kAllReduce:
    case graph::TaskKind::kAllGather:
    case graph::TaskKind::kReduceScatter:
    case graph::TaskKind::kStateCollective:
    case graph::TaskKind::kSend:
    case graph::TaskKind::kReceive:
      return name(segment.kind);
  }
  return "?";
}

}  // namespace

std::string task_name(const StepGraph& step, const graph::Task& task) {
  std::string text(1, letter(task.phase));
  if (task.micro_batch >= 0) text += std::to_string(task.micro_batch);
  const bool is_of_expert = task.segment.valid() && step.segment(task).expert >= 0;
  if (is_of_expert)
    text += fmt::format(" L{} expert {}", step.segment(task).layer, step.segment(task).expert);
  if (task.kind == graph::TaskKind::kSend)
    return fmt::format("{} send -> {}", text, task.peer.value);
  if (task.kind == graph::TaskKind::kReceive)
    return fmt::format("{} receive <- {}", text, task.peer.value);
  if (is_of_expert) return fmt::format("{} {}", text, what(step, task));
  const Segment& segment = step.segment(task);
  text += fmt::format("{} {}", place(step, task), what(step, task));
  if (segment.chunk > 0) text += fmt::format(" c{}", segment.chunk);
  if (segment.kind == SegmentKind::kRingStep || segment.hop > 0)
    text += fmt::format(" h{}", segment.hop);
  return text;
}

strategy::Axis axis_of(graph::TaskKind task, SegmentKind segment) {
  using strategy::Axis;
  if (task == graph::TaskKind::kAllToAll ||
      (task == graph::TaskKind::kExchangeCounts && segment != SegmentKind::kExpertTensor))
    return Axis::kExpert;
  switch (segment) {
    case SegmentKind::kTensor:
    case SegmentKind::kSequenceCounts:
    case SegmentKind::kTensorChoices:
    case SegmentKind::kDividedRows:
      return Axis::kTensor;
    case SegmentKind::kExpertTensor:
    case SegmentKind::kExpertTokens:
      return Axis::kExpertTensor;
    case SegmentKind::kContext:
    case SegmentKind::kContextChoices:
      return Axis::kContext;
    case SegmentKind::kDenseGradients:
    case SegmentKind::kDenseWeights:
      return Axis::kData;
    case SegmentKind::kExpertGradients:
    case SegmentKind::kExpertWeights:
      return Axis::kExpertData;
    case SegmentKind::kStageGradients:
    case SegmentKind::kStageWeights:
      return Axis::kStage;
    case SegmentKind::kTiedEmbedding:
      return Axis::kEmbeddingTable;
    case SegmentKind::kStatistics:
      return Axis::kWorld;
    case SegmentKind::kCopiedWeights:
    case SegmentKind::kCopiedGradients:
      return Axis::kExpert;
    case SegmentKind::kTakeExpert:
    case SegmentKind::kPutExpert:
    case SegmentKind::kKeepGradients:
    case SegmentKind::kDropWeights:
    case SegmentKind::kHostCopy:
    case SegmentKind::kUpdateLayer:
    case SegmentKind::kEmbedding:
    case SegmentKind::kAttention:
    case SegmentKind::kProjection:
    case SegmentKind::kRingStep:
    case SegmentKind::kDenseMlp:
    case SegmentKind::kRouteOnly:
    case SegmentKind::kGate:
    case SegmentKind::kSharedExperts:
    case SegmentKind::kExperts:
    case SegmentKind::kUnpermute:
    case SegmentKind::kHead:
    case SegmentKind::kMtpProjection:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kOptimizer:
    case SegmentKind::kWait:
      return Axis::kRank;
  }
  return Axis::kRank;
}

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kEmbedding:
      return "embedding";
    case SegmentKind::kAttention:
      return "attention";
    case SegmentKind::kProjection:
      return "projection";
    case SegmentKind::kRingStep:
      return "ring step";
    case SegmentKind::kDenseMlp:
      return "dense mlp";
    case SegmentKind::kRouteOnly:
      return "choose";
    case SegmentKind::kGate:
      return "gate";
    case SegmentKind::kSharedExperts:
      return "shared";
    case SegmentKind::kExperts:
      return "experts";
    case SegmentKind::kUnpermute:
      return "merge";
    case SegmentKind::kHead:
      return "head";
    case SegmentKind::kMtpProjection:
      return "mtp join";
    case SegmentKind::kDenseGradients:
      return "dense gradients";
    case SegmentKind::kExpertGradients:
      return "expert gradients";
    case SegmentKind::kStageGradients:
      return "stage gradients";
    case SegmentKind::kTiedEmbedding:
      return "tied embedding";
    case SegmentKind::kGradientNorm:
      return "gradient norm";
    case SegmentKind::kStatistics:
      return "statistics";
    case SegmentKind::kOptimizer:
      return "optimizer";
    case SegmentKind::kTensor:
      return "tensor collective";
    case SegmentKind::kSequenceCounts:
      return "sequence counts";
    case SegmentKind::kTensorChoices:
    case SegmentKind::kContextChoices:
      return "choices of experts";
    case SegmentKind::kExpertTensor:
      return "expert tensor collective";
    case SegmentKind::kExpertTokens:
      return "gathered tokens";
    case SegmentKind::kDividedRows:
      return "divided rows";
    case SegmentKind::kContext:
      return "keys and values";
    case SegmentKind::kDenseWeights:
      return "dense weights";
    case SegmentKind::kCopiedWeights:
      return "copied weights";
    case SegmentKind::kCopiedGradients:
      return "copied gradients";
    case SegmentKind::kExpertWeights:
      return "expert weights";
    case SegmentKind::kStageWeights:
      return "stage weights";
    case SegmentKind::kHostCopy:
      return "host copy";
    case SegmentKind::kUpdateLayer:
      return "update";
    case SegmentKind::kTakeExpert:
      return "take";
    case SegmentKind::kPutExpert:
      return "put";
    case SegmentKind::kDropWeights:
      return "drop weights";
    case SegmentKind::kKeepGradients:
      return "keep gradients";
    case SegmentKind::kWait:
      return "wait";
  }
  return "?";
}

}  // namespace piper::schedule
