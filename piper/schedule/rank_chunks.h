// Which layers of the model, and which of its ends, lie on a rank of the pipeline.
#pragma once

#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// One chunk of a rank: a virtual stage.
struct RankChunk {
  int64_t stage = 0;  // virtual
  int32_t first_layer = 0, num_layers = 0;
  bool is_first = false;  // has the embedding
  bool is_last = false;   // has the head, and the modules of multi-token prediction
};

// By chunk, in the order of the model. Requires contradictions(strategy) to be empty and pp_rank in
// [0, pp).
std::vector<RankChunk> chunks_of(const strategy::Strategy& strategy, int64_t pp_rank);

// The layers and ends (-1 embedding, -2 head) whose weights, gradients and optimizer states a chunk
// has, in the order of its forwards. A last stage with modules of multi-token prediction has an
// embedding of its own for them. `has_modules`: the modules are executed.
std::vector<int32_t> state_layers(const model::Model& model, const strategy::Strategy& strategy,
                                  const RankChunk& chunk, bool has_modules = true);

// Whether the rank has the embedding or the head, so that it reads tokens or targets. In a V the
// first rank has both, the last one neither.
bool holds_an_end(const strategy::Strategy& strategy, int64_t pp_rank);

// `layer`: also that of a module of multi-token prediction.
bool holds_layer(const strategy::Strategy& strategy, int64_t pp_rank, int32_t layer);

}  // namespace piper::schedule
