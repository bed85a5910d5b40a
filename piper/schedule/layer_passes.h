// A layer's program with a recomputation: which operations run in which pass, and where each slot's
// life ends. Nobody else decides this; memory, time and tasks of a layer all follow the lists
// below.
//
//   forward     every operation; a tape that nobody reads later is not written
//   recompute   kFull: before the backward, what the backward reads is made again from x
//   backward    with the segments whose tapes were dropped run again where the program says so
//
// A slot is freed by its last reader, and by its writer where nobody reads it.
#pragma once

#include <piper/schedule/layer_program.h>

#include <vector>

namespace piper::schedule {

struct LayerTask {
  graph::TaskKind kind = graph::TaskKind::kCompute;
  SegmentKind segment = SegmentKind::kAttention;
  strategy::Axis group = strategy::Axis::kExpert;
  LayerSlotList reads, writes, frees;
  bool is_recomputed = false;  // phase kRecompute
  // Computing: an all-to-all is under way whose rows nobody has read yet.
  bool is_beside_exchange = false;
};

struct LayerPasses {
  std::vector<ProgramSlot> slots;  // the program's, then those that only a recomputation writes
  std::vector<LayerTask> forward, recompute, backward;
  std::vector<LayerSlot> kept;  // from the forward to the recomputation or backward; x is one
  LayerSlot x, output, output_gradient, x_gradient;
};

LayerPasses passes_of(const LayerProgram& program, strategy::Recompute recompute);

}  // namespace piper::schedule
