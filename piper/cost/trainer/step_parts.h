// What a step of a strategy is made of under a trainer, before anything waits for anything: the
// prices that the closed form adds up (trainer_estimator.h), and that priced_step.h lays out as
// tasks.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/cost/trainer/schedule_facts.h>
#include <piper/cost/trainer/shape_prices.h>
#include <piper/cost/trainer/stage_sums.h>
#include <piper/cost/trainer/state_traffic.h>
#include <piper/cost/trainer/trainer_context.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

// A virtual stage and one micro-batch.
struct ChunkPart {
  int64_t first_layer = 0;
  std::vector<const LayerPrice*> layers;
  bool has_embedding = false, has_head = false;
  strategy::Recompute recompute = strategy::Recompute::kNone;
  ComputeScale scale;
  double kept_bytes = 0;
  double copy_seconds = 0;  // of these to the host, or back
};

// One rank of the pipeline.
struct StagePart {
  StageBytes bytes;
  StateTraffic traffic;
  double dense_parameters = 0, expert_parameters = 0;
  double update_seconds = 0, optimizer_copy_seconds = 0;
};

struct StepParts {
  std::vector<ChunkPart> chunks;  // in the order of the model
  std::vector<StagePart> stages;
  const EndPrice* ends = nullptr;
  const TrainerProfile* trainer = nullptr;
  std::vector<StageMessage> messages;  // rank of the pipeline to the next; the last's to the first
  double message_wait = 0;             // of one in the mean, what computing waits for
  double hidden_gradients = 0;         // part of the traffic of states that may hide
};

// `prices` outlive the result.
StepParts step_parts(const TrainerContext& context, const strategy::Strategy& strategy,
                     const ShapePrices& prices, const StrategySums& sums, ScheduleFacts& schedules);

}  // namespace piper::cost
