// Bytes of one rank of a stage at its peak under a trainer: state by ZeRO stage, kept activations
// times the micro-batches in flight, what the head or a layer's backward needs for the moment.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/cost/trainer/schedule_facts.h>
#include <piper/cost/trainer/stage_sums.h>
#include <piper/cost/trainer/trainer_context.h>

#include <cstdint>

namespace piper::cost {

StageBytes stage_bytes(const TrainerContext& context, const strategy::Strategy& strategy,
                       const StrategySums& sums, int64_t stage, ScheduleFacts& schedules);

}  // namespace piper::cost
