// Whole steps in virtual time, with the prices of an estimator: what `piper plan`, `estimate` and
// `compare` say of a strategy where that is little enough work.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/strategy/strategy.h>

namespace piper::plan {

// Whether that is at most a second or two of work. With exact costs: of worlds of at most 64 ranks.
bool may_simulate(const cost::Estimator& estimator, const strategy::Strategy& strategy);

// Seconds of the step. One pipeline where it stands for all: under a trainer's profile always, with
// exact costs where sim/symmetry.h proves it, else every rank, with the scatter of equal tasks that
// was measured.
double simulated_seconds(cost::Estimator& estimator, const strategy::Strategy& strategy,
                         double imbalance = 1);

}  // namespace piper::plan
