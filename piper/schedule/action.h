// What a rank of a pipeline computes, in order. A schedule is one list of actions a rank, without
// any communication: write_step() (step.h) inserts it, execution_problems() (executable.h) proves
// that the lists of all ranks fit together, and cost::PipelineSimulator simulates them in seconds.
//
// A rank holds `vpp` chunks of layers, numbered from 0 in the order of the model. The chunks of all
// ranks are the pp x vpp virtual stages; virtual stage v lies on rank v % pp, in a V on rank min(v,
// 2 pp - 1 - v).
#pragma once

#include <piper/strategy/strategy.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace piper::schedule {

struct Action {
  // kBackward is both parts at once. Split, kBackwardInput makes the gradient that the stage before
  // waits for, and kBackwardWeights, for which nobody waits, fills what would be idle; activations
  // are held until it has run.
  enum class Kind : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeights } kind;
  int32_t micro_batch;
  int32_t chunk = 0;
  // The first of a pair: this forward and the backward behind it, of another micro-batch, may
  // overlap (one's exchanges with the other's compute). To run them one after the other is correct
  // as well.
  bool pairs_with_next = false;
  bool operator==(const Action&) const = default;
};
constexpr bool makes_input_gradient(Action::Kind kind) {
  return kind == Action::Kind::kBackward || kind == Action::Kind::kBackwardInput;
}
constexpr bool makes_weight_gradients(Action::Kind kind) {
  return kind == Action::Kind::kBackward || kind == Action::Kind::kBackwardWeights;
}

constexpr int64_t virtual_stage(strategy::PipelineSchedule schedule, int64_t pp, int64_t rank,
                                int64_t chunk) {
  return strategy::is_v(schedule) && chunk == 1 ? 2 * pp - 1 - rank : chunk * pp + rank;
}
constexpr int64_t rank_of_stage(strategy::PipelineSchedule schedule, int64_t pp, int64_t stage) {
  return strategy::is_v(schedule) ? std::min(stage, 2 * pp - 1 - stage) : stage % pp;
}
constexpr int64_t chunk_of_stage(int64_t pp, int64_t stage) { return stage / pp; }

// Dispatches on the schedule, one pair of files each. Requires rank in [0, pp), num_micro_batches
// >= 1, and vpp as strategy::contradictions() allows it: 2 in a V, any in interleaved, else 1
// (PIPER_CHECK). Any number of micro-batches works, also fewer than stages.
std::vector<Action> actions(strategy::PipelineSchedule schedule, int64_t pp, int64_t rank,
                            int64_t num_micro_batches, int64_t vpp = 1);

// A schedule that needs a least number of micro-batches, or a multiple of some number, is written
// for the next number that suits it; then those that do not exist are taken out. What is left is
// executable because the whole was: a micro-batch waits for no other one, and taking actions out of
// a list never moves two others past each other. A pair that loses one half is none.
void drop_micro_batches_from(std::vector<Action>& actions, int64_t num_micro_batches);

}  // namespace piper::schedule
