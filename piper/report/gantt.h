// What a timeline chart draws: bars on lanes. Made from a step, simulated or measured, or read
// back from the Chrome trace of one, so that both pictures come from one form.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace piper::report {

// What a bar's colour says. "Experts" is the feed-forward part of a layer (routed experts or a
// dense MLP), "layers" everything else that computes.
enum class BarClass : uint8_t {
  kForwardLayers,
  kForwardExperts,
  kRecompute,
  kBackwardLayers,
  kBackwardExperts,
  kUpdate,
  kExchange,      // all-to-all and its counts
  kPointToPoint,  // send, receive between stages
  kReduction,     // gradients, statistics
};
inline constexpr std::array kBarClasses = {
    BarClass::kForwardLayers,  BarClass::kForwardExperts,  BarClass::kRecompute,
    BarClass::kBackwardLayers, BarClass::kBackwardExperts, BarClass::kUpdate,
    BarClass::kExchange,       BarClass::kPointToPoint,    BarClass::kReduction};

inline constexpr std::array kStreams = {graph::Stream::kCompute, graph::Stream::kExchange,
                                        graph::Stream::kSend,    graph::Stream::kReceive,
                                        graph::Stream::kStates,  graph::Stream::kHost};

// "forward", "forward experts", ...: the legend's text and the category ("cat") of an event in a
// Chrome trace.
const char* name(BarClass bar_class);

BarClass bar_class(const schedule::StepGraph& step, const graph::Task& task);

struct Bar {
  graph::Stream stream = graph::Stream::kCompute;
  int32_t lane = 0;  // bars of one lane of a stream never overlap; compute has one lane
  BarClass bar_class = BarClass::kForwardLayers;
  double start_seconds = 0;
  double end_seconds = 0;
  std::string name;
};

struct GanttRank {
  int32_t rank = 0;
  std::string label;                        // "rank 3 · stage 1"
  std::vector<Bar> bars;                    // ascending by stream, then start
  std::vector<graph::MemorySample> memory;  // may be empty
};

struct Gantt {
  std::vector<GanttRank> ranks;
  double seconds = 0;  // end of the last bar
  // Share of `seconds` in which the rank's compute stream is busy, 0 when nothing ran.
  static double busy_share(const GanttRank& rank, double seconds);
};

// `stage_of_rank` is empty when unknown; else it has one entry a rank. Tasks that have not
// run are left out. `max_ranks` > 0: of more ranks that take part, so many, evenly chosen.
Gantt make_gantt(const schedule::StepGraph& step, const graph::Timeline& timeline,
                 const std::vector<int64_t>& stage_of_rank = {}, size_t max_ranks = 0);

// "rank 3 · stage 1", or "rank 3" when the stages are unknown.
std::string rank_label(int64_t rank, const std::vector<int64_t>& stage_of_rank);

// Gives the intervals of one stream lanes on which they do not overlap: each takes the first lane
// that is free at its start. Several communication tasks may be in flight at once.
class Lanes {
 public:
  // Starts must not descend from call to call.
  int32_t place(double start_seconds, double end_seconds);
  int32_t count() const { return static_cast<int32_t>(free_at_.size()); }

 private:
  std::vector<double> free_at_;
};

}  // namespace piper::report
