// Plays a step in virtual time: when would every task run, and how much memory would be live?
//
// Rules (the ones the real player keeps): streams start in order; a compute task holds one core of its node (ready
// tasks take cores first come, first served; ties by rank) or its device; a send and its receive run from the moment
// both are posted; an exchange or reduction runs on each member from the moment all members have posted.
#pragma once

#include <piper/cost/prices.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>

namespace piper::sim {

// Deterministic. Throws InternalError when the graph deadlocks (validate and find_deadlock come first). Ranks that
// have no tasks in the graph take no part. When operations lack members (a subset of ranks was written), the members
// present are enough.
graph::Timeline play(const schedule::StepGraph& step, const cost::Prices& prices);

}  // namespace piper::sim
