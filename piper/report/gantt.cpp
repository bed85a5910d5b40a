#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/report/gantt.h>

#include <algorithm>

namespace piper::report {
namespace {

using graph::Phase;
using graph::Stream;
using graph::TaskKind;
using schedule::SegmentKind;

bool feeds_forward(SegmentKind kind) {
  return kind == SegmentKind::kExperts || kind == SegmentKind::kSharedExperts ||
         kind == SegmentKind::kDenseMlp;
}

BarClass compute_class(Phase phase, bool experts) {
  switch (phase) {
    case Phase::kForward:
      return experts ? BarClass::kForwardExperts : BarClass::kForwardLayers;
    case Phase::kRecompute:
      return BarClass::kRecompute;
    case Phase::kBackward:
    case Phase::kBackwardInput:
    case Phase::kBackwardWeights:
      return experts ? BarClass::kBackwardExperts : BarClass::kBackwardLayers;
    case Phase::kUpdate:
      return BarClass::kUpdate;
  }
  PIPER_CHECK(false, "phase");
}

}  // namespace

const char* name(BarClass bar_class) {
  switch (bar_class) {
    case BarClass::kForwardLayers:
      return "forward";
    case BarClass::kForwardExperts:
      return "forward experts";
    case BarClass::kRecompute:
      return "recompute";
    case BarClass::kBackwardLayers:
      return "backward";
    case BarClass::kBackwardExperts:
      return "backward experts";
    case BarClass::kUpdate:
      return "update";
    case BarClass::kExchange:
      return "all-to-all";
    case BarClass::kPointToPoint:
      return "send and receive";
    case BarClass::kReduction:
      return "all-reduce";
  }
  PIPER_CHECK(false, "bar class");
}

BarClass bar_class(const schedule::StepGraph& step, const graph::Task& task) {
  switch (task.kind) {
    case TaskKind::kCompute:
      return compute_class(task.phase,
                           task.segment.valid() && feeds_forward(step.segment(task).kind));
    case TaskKind::kSend:
    case TaskKind::kReceive:
      return BarClass::kPointToPoint;
    case TaskKind::kExchangeCounts:
    case TaskKind::kAllToAll:
      return BarClass::kExchange;
    case TaskKind::kAllReduce:
    case TaskKind::kAllGather:
    case TaskKind::kReduceScatter:
    case TaskKind::kRing:
    case TaskKind::kStateCollective:
    case TaskKind::kHostCopy:
      return BarClass::kReduction;
  }
  PIPER_CHECK(false, "task kind");
}

std::string rank_label(int64_t rank, const std::vector<int64_t>& stage_of_rank) {
  if (stage_of_rank.empty()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} · stage {}", rank, stage_of_rank[static_cast<size_t>(rank)]);
}

int32_t Lanes::place(double start_seconds, double end_seconds) {
  // Half a nanosecond: a trace is written with three digits of a microsecond.
  const auto is_free = [&](double at) { return at <= start_seconds + 0.5e-9; };
  const auto lane = std::find_if(free_at_.begin(), free_at_.end(), is_free);
  if (lane == free_at_.end()) {
    free_at_.push_back(end_seconds);
    return count() - 1;
  }
  *lane = end_seconds;
  return static_cast<int32_t>(lane - free_at_.begin());
}

double Gantt::busy_share(const GanttRank& rank, double seconds) {
  double busy = 0;
  for (const Bar& bar : rank.bars) {
    if (bar.stream == Stream::kCompute) busy += bar.end_seconds - bar.start_seconds;
  }
  return seconds > 0 ? busy / seconds : 0;
}

namespace {

std::vector<int32_t> chosen(const graph::Graph& graph, size_t max_ranks) {
  std::vector<int32_t> here;
  for (int32_t rank = 0; rank < graph.num_ranks(); ++rank)
    if (graph.takes_part(Rank(rank))) here.push_back(rank);
  if (max_ranks < 2 || here.size() <= max_ranks) return here;
  std::vector<int32_t> some;
  for (size_t i = 0; i < max_ranks; ++i)
    some.push_back(here[i * (here.size() - 1) / (max_ranks - 1)]);
  return some;
}

}  // namespace

Gantt make_gantt(const schedule::StepGraph& step, const graph::Timeline& timeline,
                 const std::vector<int64_t>& stage_of_rank, size_t max_ranks) {
  Gantt gantt;
  for (const int32_t r : chosen(step.graph, max_ranks)) {
    GanttRank rank{.rank = r, .label = rank_label(r, stage_of_rank)};
    for (const Stream stream : kStreams) {
      Lanes lanes;
      for (const graph::TaskId id : graph::start_order(step.graph, timeline, Rank(r), stream)) {
        const graph::Interval& interval = timeline.tasks[id.index()];
        if (!interval.has_run()) continue;
        const graph::Task& task = step.graph.task(id);
        rank.bars.push_back({.stream = stream,
                             .lane = lanes.place(interval.start_seconds, interval.end_seconds),
                             .bar_class = bar_class(step, task),
                             .start_seconds = interval.start_seconds,
                             .end_seconds = interval.end_seconds,
                             .name = schedule::task_name(step, task)});
        gantt.seconds = std::max(gantt.seconds, interval.end_seconds);
      }
    }
    if (static_cast<size_t>(r) < timeline.memory.size()) rank.memory = timeline.memory[r];
    if (!rank.bars.empty()) gantt.ranks.push_back(std::move(rank));
  }
  return gantt;
}

}  // namespace piper::report
