// The closed form of a pipeline: what its schedule idles, and what it holds, for equal chunks.
// pipeline_simulator.h simulates the same schedules action by action, for chunks that differ; a
// test holds the two to each other.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::cost {

// Seconds of one micro-batch through all layers of one rank (its vpp chunks together).
struct RankPassSeconds {
  double forward = 0;
  double backward_input = 0;    // with recomputation
  double backward_weights = 0;  // of a whole backward, the two are one after the other
};

// By how much a step's forwards and backwards, over all ranks, are longer than one rank's own work,
// m (F + I + W). `message`: seconds between two neighbouring chunks on different ranks, either way;
// it travels while ranks compute. With f, i, w of one chunk (F / vpp, ...), b = i + w, p = pp, v =
// vpp, m micro-batches and no messages:
//
//   gpipe, 1f1b  (p-1)(f+b)                           Huang et al. 2019, Narayanan et al. 2019
//   1f1b-pairs   (p-1)(f+b)                           pairs one after the other
//   interleaved, interleaved-pairs  (p-1)(f+b)        Narayanan et al. 2021; m a multiple of p
//   zb-h1        (p-1) max(f, i, f+i-w)               Qi et al. 2024: (p-1)(f+i-w); m >= p
//   zb-v         (p-1) max(f, i, 2(i-w))              Qi et al. 2024; m >= 2p-1, w <= i
//   dualpipev    (p-1)(f + max(0,i-w)) + max(0, (p-1)(i-f) - f)  m >= 2p; pairs one after the other
//
// With messages the V's are nearly exact, the others exact; beyond the conditions they follow the
// longest chain of actions: within 5 % of the simulated step (a quarter of a percent on average)
// for i from 0.7 to 2.5 f, w from 0.2 to 1.3 f and messages up to 0.1 f. Requires pp, vpp,
// num_micro_batches >= 1 and vpp as the schedule has it. Thread-safe, some nanoseconds.
double bubble_seconds(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                      int64_t num_micro_batches, const RankPassSeconds& pass, double message = 0);

// The most chunks whose activations a rank holds at once, each counted from its forward to the end
// of its whole backward or of the weights' part: exact, for any number of micro-batches. Divided by
// vpp: micro-batches of the rank's layers.
int64_t chunk_forwards_in_flight(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                                 int64_t rank, int64_t num_micro_batches);

// The same in micro-batches, as a whole one each: rounded up where a rank holds two chunks; under
// interleaved, whose chunks are not known here, at most all.
int64_t micro_batches_in_flight(strategy::PipelineSchedule schedule, int64_t pp, int64_t rank,
                                int64_t num_micro_batches);

}  // namespace piper::cost
