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

std::string place(const Segment& segment) {
  if (segment.layer >= 0) return fmt::format(" L{}", segment.layer);
  if (segment.kind != SegmentKind::kDenseGradients) return "";
  return segment.layer == -1 ? " embedding" : " head";
}

// Exchanges of the gate's rows go to the experts, those of the experts' rows come back.
const char* what(const StepGraph& step, const graph::Task& task) {
  const Segment& segment = step.segment(task);
  switch (task.kind) {
    case graph::TaskKind::kExchangeCounts:
      return "counts";
    case graph::TaskKind::kAllToAll:
      return segment.kind == SegmentKind::kGate ? "dispatch" : "combine";
    case graph::TaskKind::kCompute:
    case graph::TaskKind::kAllReduce:
    case graph::TaskKind::kCollective:
    case graph::TaskKind::kStateCollective:
    case graph::TaskKind::kHostCopy:
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
  if (task.kind == graph::TaskKind::kSend)
    return fmt::format("{} send -> {}", text, task.peer.value);
  if (task.kind == graph::TaskKind::kReceive)
    return fmt::format("{} receive <- {}", text, task.peer.value);
  return fmt::format("{}{} {}", text, place(step.segment(task)), what(step, task));
}

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kEmbedding:
      return "embedding";
    case SegmentKind::kAttention:
      return "attention";
    case SegmentKind::kDenseMlp:
      return "dense mlp";
    case SegmentKind::kGate:
      return "gate";
    case SegmentKind::kSharedExperts:
      return "shared";
    case SegmentKind::kExperts:
      return "experts";
    case SegmentKind::kMerge:
      return "merge";
    case SegmentKind::kHead:
      return "head";
    case SegmentKind::kMtpJoin:
      return "mtp join";
    case SegmentKind::kDenseGradients:
      return "dense gradients";
    case SegmentKind::kExpertGradients:
      return "expert gradients";
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
    case SegmentKind::kContext:
      return "keys and values";
    case SegmentKind::kWeights:
      return "gathered weights";
    case SegmentKind::kHostCopy:
      return "host copy";
    case SegmentKind::kMessageWait:
      return "waits for a message";
  }
  return "?";
}

}  // namespace piper::schedule
