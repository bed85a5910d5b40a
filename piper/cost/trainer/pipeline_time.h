// When the ranks of a pipeline have done their last actions. Bubbles as cost/bubble.h has them for
// equal stages; where they differ, the others' work takes the place of p - 1 means. What that does
// not fit is simulated action by action (cost/pipeline_simulator.h): the two V's, pairs of micro-
// batches, interleaved chunks of unequal layers, interleaved or divided backwards whose states
// travel with every micro-batch, and activations that go to the host and back, with their copies.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/cost/pipeline_simulator.h>
#include <piper/cost/trainer/schedule_facts.h>
#include <piper/cost/trainer/shape_prices.h>
#include <piper/cost/trainer/stage_overlap.h>
#include <piper/cost/trainer/stage_sums.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::cost {

// Limits of an estimate: beyond either it may be coarse (estimator.h).
struct EstimateLimits {
  double seconds, bytes;
};

// What a step's pipeline is made of.
struct PipelineParts {
  const std::vector<StageOverlap>& states;
  double in_turn = 0;        // of the busiest rank: its micro-batches, one after the other
  double with_states = 0;    // of that, because states travel with every micro-batch
  double last_backward = 0;  // of a chunk
  double bubble = 0;         // by formula
};

// By formula. `stages`: with what states add to them, of which `busiest` takes longest. Pure.
double pipeline_bubble(const strategy::Strategy& strategy, const std::vector<BusySeconds>& stages,
                       size_t busiest, double message_seconds);

// Not thread-safe; the others outlive it.
class PipelineTime {
 public:
  PipelineTime(const TrainerContext& context, ScheduleFacts& schedules, SumsOfStages& sums)
      : context_(context), schedules_(schedules), sums_(sums) {}

  // What the pipeline adds to `e`, which has everything else: bubble, copies of activations,
  // exposed traffic of states.
  void add(const strategy::Strategy& strategy, const ShapePrices& prices,
           const PipelineParts& pipeline, const EstimateLimits& limits, Estimate& e);
  // When the last rank has done its last action, simulated whatever the schedule.
  double simulated(const strategy::Strategy& strategy, const ShapePrices& prices,
                   const std::vector<StageOverlap>& states);

 private:
  // One after the other: chunks_; what it takes at least; when each rank has done its last action,
  // in finishes_ (returns the latest).
  void fill_chunks(const strategy::Strategy& s, const ShapePrices& prices,
                   const std::vector<StageOverlap>& states);
  double least_finish(const strategy::Strategy& s, bool copies);
  double finish(const strategy::Strategy& s, bool copies);
  bool copies_activations(const strategy::Strategy& s);
  double pace(const strategy::Strategy& s, int64_t simulated, bool copies);
  std::span<const RankSeconds> simulate(const strategy::Strategy& s, int64_t simulated,
                                        bool copies);

  const TrainerContext& context_;
  ScheduleFacts& schedules_;
  SumsOfStages& sums_;
  PipelineSimulators simulators_;
  std::vector<ChunkSeconds> chunks_;
  std::vector<double> finishes_, earlier_;  // by stage
};

}  // namespace piper::cost
