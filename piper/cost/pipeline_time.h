// How long a pipeline takes for one step's forwards and backwards: the recurrence of its schedule.
//
//   forward  k on stage s starts when the stage is free and stage s-1 has sent k
//   backward k on stage s starts when the stage is free and stage s+1 has sent k's gradient
//
// each stage in the order of its schedule (GPipe: all forwards, then all backwards; 1F1B: min(m,
// p-s) forwards, then one backward and one forward in turn). Messages travel while the stages
// compute; a stage takes the message for an action once the action two before it has ended
// (schedule/transfers.h). For equal stages and free messages this is (m + p - 1)(F + B); unequal
// stages and the round trips that 1F1B exposes come out as they are. After a transient the
// recurrence repeats itself, so more than about 128 micro-batches are continued linearly (within
// 0.2 %).
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::cost {

struct StageSeconds {
  double forward = 0;        // one micro-batch, exchanges included
  double backward = 0;       // with recomputation
  double ahead = 0;          // the beginning of the backward that needs no gradient: recomputation
  double send_forward = 0;   // to the next stage; 0 on the last
  double send_backward = 0;  // to the stage before; 0 on the first
};

// When every stage has finished its last backward, seconds after the start of the step.
std::vector<double> pipeline_finish(strategy::PipelineSchedule schedule,
                                    std::span<const StageSeconds> stages,
                                    int64_t num_micro_batches);

// Micro-batches whose activations are alive at once on a stage (bubble.h), rounded up to whole ones
// where a rank holds two chunks; under interleaved, whose chunks are not known here, at most all.
int64_t micro_batches_in_flight(strategy::PipelineSchedule schedule, int64_t pp, int64_t stage,
                                int64_t num_micro_batches);

}  // namespace piper::cost
