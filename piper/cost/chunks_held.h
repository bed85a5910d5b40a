// Activations in flight by chunk: which forwards of a pipeline schedule a rank holds when it holds
// the most. Where all chunks keep equally many bytes, bubble.h has the number in closed form; where
// they differ, it matters which.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

// One moment of a rank's list of actions.
struct ChunksHeld {
  std::vector<int64_t> forwards;  // of each chunk, from its start to the end of its whole backward
                                  // or of its weights' part
  // How many of these wait for their weights' part, which holds what was recomputed as well. Zeros
  // where nothing is recomputed.
  std::vector<int64_t> waiting;
  // The input's part that ends here is one of them, and its last layer is still at work.
  bool ends_input_part = false;
  // A forward and a backward take turns layer by layer from here on or until here, so one layer
  // more is held than `forwards` says.
  bool is_in_pair = false;
};

// The moments at which the rank may hold the most: none has as many of every chunk as another.
// `takes_turns`: the two of a pair (schedule::Action::pairs_with_next) alternate, so the
// activations of the forward come as those of the backward go; else the forward is whole before the
// backward begins. `recomputes`: `waiting` is counted. Requires what schedule::actions() requires.
// Thread-safe; time linear in the list, of which four rounds of the pipeline stand for all but
// GPipe's.
std::vector<ChunksHeld> chunks_held(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                                    int64_t num_micro_batches, int64_t rank, bool takes_turns,
                                    bool recomputes);

}  // namespace piper::cost
