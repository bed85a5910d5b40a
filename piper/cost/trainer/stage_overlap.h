// How long weights and gradients that travel beside a stage's compute (state_traffic.h) hold it up:
// its layers one by one on an OverlapTimeline.
#pragma once

#include <piper/cost/trainer/schedule_facts.h>
#include <piper/cost/trainer/stage_sums.h>
#include <piper/cost/trainer/state_traffic.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::cost {

// What that adds to a pass of a virtual stage, in seconds, where it goes with every micro-batch.
struct ChunkOverlap {
  double forward = 0;
  double backward = 0;                     // whole
  double backward_input = 0, weights = 0;  // the two parts of a split one
  double reduces = 0;                      // of `backward`: what gradients of weights add
  // What hides when a forward and a backward are a pair beyond StageSums::hideable (less than none
  // where links are full, whatever hides).
  double pair_saves = 0;
};

// What it comes to for a stage, in seconds.
struct StageOverlap {
  double forward = 0, backward = 0;  // every micro-batch takes longer
  double weights = 0;                // likewise, where gradients of weights are made apart
  double reduces = 0;                // of `backward`: what gradients of weights add
  double slowed = 0;                 // the last backward does
  double rest = 0;                   // left to reduce behind it
  double gathered = 0;               // before the first forwards, alone
  double first = 0;                  // first forwards start late, or wait, for weights
  double gathered_last = 0;          // behind the update
  // The first four by chunk, where they are not 0 and the rank has several chunks, or pairs; else
  // empty.
  std::vector<ChunkOverlap> chunks;
};

// Seconds that states add to a step besides its pipeline. `earlier`: by stage, how long before the
// last stage it has done its last action. Pure.
double shown_states(const strategy::Strategy& strategy, const std::vector<StageOverlap>& stages,
                    const std::vector<double>& earlier);

// Keeps what it has worked out for the stages last asked for. Not thread-safe; the others outlive
// it.
class StageOverlaps {
 public:
  StageOverlaps(const TrainerContext& context, ScheduleFacts& schedules)
      : context_(context), schedules_(schedules) {}

  // By stage; valid until other stages are asked for.
  const std::vector<StageOverlap>& of(const strategy::Strategy& strategy, const ShapePrices& prices,
                                      const StrategySums& sums);

 private:
  StageOverlap of_stage(const strategy::Strategy& strategy, const ShapePrices& prices,
                        const StageSums& sums, int64_t stage);
  // In pairs: as many of the stage's backwards are whole, and in a pair, as its list says.
  void set_backward(const strategy::Strategy& strategy, int64_t stage, StageOverlap& overlap);
  // Whether gradients are reduced with every micro-batch, not behind the last.
  bool reduces_every(const strategy::Strategy& strategy) const;
  bool awaits_weights(const strategy::Strategy& strategy, const StageSums& sums, int64_t stage,
                      const StageOverlap& like) const;

  const TrainerContext& context_;
  ScheduleFacts& schedules_;
  // What an overlap depends on beside the stages' sums.
  using Key = std::tuple<int64_t, int64_t, int64_t, strategy::Placement, strategy::PipelineSchedule,
                         int64_t>;
  int64_t sums_number_ = 0;
  std::vector<std::pair<Key, std::vector<StageOverlap>>> known_;
};

}  // namespace piper::cost
