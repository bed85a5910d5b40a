// Activations that live with the host between forward and backward: which of a stage's, when they
// leave and come back, and how many stay on the device. A stage's order of actions decides all of
// it.
//
//   out   behind the forward; the second forward behind that waits until it has left: a burst of forwards is slowed to the
//         speed of the copies instead of filling the device
//   back  for two backwards at a time at most, never more than four actions ahead
//
// What is wanted again within three actions stays.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// A chunk's micro-batch is chunk * micro-batches + micro-batch; places are those in the stage's
// list (actions).
struct HostCopies {
  static constexpr int32_t kNone = -1;
  struct Back {
    int32_t place;  // behind which the copy is posted
    int32_t which;
  };
  std::vector<char> is_copied;
  // the forward whose copy out must have ended (a chunk's micro-batch), or kNone
  std::vector<int32_t> starts_behind;
  std::vector<Back> back;  // in order
  double copied_part = 0;  // of all forwards
  int64_t most_held = 0;   // forwards of a chunk on the device at once, those on their way included
};

// Requires what actions() requires. Thread-safe; time and memory linear in the actions.
HostCopies host_copies(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                       int64_t num_micro_batches, int64_t stage);

}  // namespace piper::schedule
