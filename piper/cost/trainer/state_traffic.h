// Seconds that the states of a stage (weights, gradients, optimizer) take beside its compute:
// reductions, gathers, the update and its copies.
#pragma once

#include <piper/cost/trainer/stage_sums.h>
#include <piper/cost/trainer/trainer_context.h>

namespace piper::cost {

// Gradients and weights of one kind of parameters of a stage, all of them once.
struct Reduction {
  CommTime reduce;  // all-reduce, with ZeRO the scatter alone
  CommTime gather;  // of weights; none without ZeRO
};

// What moves because parameters are replicated or divided.
struct StateTraffic {
  Reduction dense, experts;
  double reduces = 1, gathers = 1;  // times a step
  double total() const {
    return reduces * (dense.reduce.total() + experts.reduce.total()) +
           gathers * (dense.gather.total() + experts.gather.total());
  }
};
StateTraffic state_traffic(const TrainerContext& context, const strategy::Strategy& strategy,
                           const StageSums& sums);

// The update of one rank of the stage.
double update_seconds(const TrainerContext& context, const strategy::Strategy& strategy,
                      const StageSums& sums);
// Copying its optimizer states to and from the host; 0 where they are not offloaded.
double optimizer_copy_seconds(const TrainerContext& context, const strategy::Strategy& strategy,
                              const StageSums& sums);

}  // namespace piper::cost
