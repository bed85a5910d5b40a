// The step that schedule/ writes in a trainer's style, with the trainer's prices: what
// sim::simulate simulates of a strategy that has no exact costs. It is made of the parts that the
// closed form adds up (step_parts.h), so that waiting, contention, and memory over time come out of
// a simulation instead of a formula.
//
//   compute       a segment's seconds; split as the trainer overlaps it, in parts no longer than
//                 what they hide
//   collectives   alone each takes what cost::Rates says of the worst group of its axis; the
//                 collectives of a pass share its price by what they gather or sum. While bytes
//                 move an operation needs its members' ports (cost/links.h), which all axes share
//   host          a device's link to its host is a port too: copies both ways share it
//   memory        states and fixed bytes always; what a layer keeps from its forward to the end of
//                 its backward; what the trainer calls working during backwards
#pragma once

#include <piper/cost/prices.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/schedule/step.h>

#include <vector>

namespace piper::cost {

// `ranks`: only these (all when empty), as schedule::write_step. Requires contradictions(strategy,
// model) to be empty, the estimator's sequence and precision, and world <= devices of the cluster
// (PIPER_CHECK). Rank i sits on device i.
PricedStep write_priced_step(TrainerEstimator& estimator, const strategy::Strategy& strategy,
                             const std::vector<Rank>& ranks = {}, double imbalance = 1);

// How this trainer executes a step.
schedule::ExecutionStyle style_of(const TrainerProfile& trainer);

}  // namespace piper::cost
