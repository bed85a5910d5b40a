// What a rank writes for one forward or backward of one of its chunks: the same list for every
// micro-batch, so that a pair of actions can be written in turns (stage.cpp).
#pragma once

#include <piper/schedule/layer_passes.h>
#include <piper/schedule/writer.h>

#include <cstdint>
#include <vector>

namespace piper::schedule {

// A virtual stage: which layers it has, and which ends of the model.
struct ChunkLayers {
  int32_t first = 0, last = -1;
  bool is_first = false, is_last = false;
  // Behind the model's own head, one layer each.
  int32_t num_modules = 0;
};

struct ChunkStep {
  enum class Kind : uint8_t {
    kEmbedding,
    kEnter,  // the layer takes what the one before has made
    kTask,   // of a layer's pass
    kLeave,  // and hands on what it has made
    kHead,   // of the model (layer -1) or a module
    kJoin,
    kYield,        // here another micro-batch may take its turn
    kBeginStates,  // StateTasks::begin() and end() of these parameters
    kEndStates,
  };
  Kind kind = Kind::kTask;
  int32_t layer = -1;
  const LayerPasses* passes = nullptr;  // kEnter, kTask, kLeave
  const LayerTask* task = nullptr;      // kTask
};

std::vector<ChunkStep> forward_steps(const StepWriter& step, const ChunkLayers& chunk,
                                     int64_t pp_rank);
std::vector<ChunkStep> backward_steps(const StepWriter& step, const ChunkLayers& chunk,
                                      int64_t pp_rank);

}  // namespace piper::schedule
