// A layer's program with a recomputation: which operations run in which pass, and where each slot's
// life ends. Nobody else decides this; memory, time and tasks of a layer all follow the lists
// below.
//
//   forward     every operation; a tape that nobody reads later is not written
//   recompute   kFull: before the backward, what the backward reads is made again from x; under a
//               trainer that reruns whole layers, everything
//   backward    with the segments whose tapes were dropped run again where the program says so
//
// A slot is freed by its last reader, and by its writer where nobody reads it.
#pragma once

#include <piper/schedule/layer_program.h>

#include <compare>
#include <cstdint>
#include <vector>

namespace piper::schedule {

struct LayerTask {
  graph::TaskKind kind = graph::TaskKind::kCompute;
  SegmentKind segment = SegmentKind::kAttention;
  strategy::Axis group = strategy::Axis::kExpert;
  ComputePart share = ComputePart::kWhole;
  int16_t chunk = 0, hop = 0;  // as in Segment
  LayerSlotList reads, writes, frees;
  bool is_recomputed = false;   // phase kRecompute
  bool is_after_yield = false;  // before it another micro-batch may take its turn
  bool is_behind_exchange = false, is_behind_compute = false;  // as in LayerOperation
  // Computing: an all-to-all is under way whose rows nobody has read yet.
  bool is_beside_exchange = false;
};

struct LayerPasses {
  std::vector<ProgramSlot> slots;  // the program's, then those that only a recomputation writes
  std::vector<LayerTask> forward, recompute, backward;
  std::vector<LayerSlot> kept;  // from the forward to the recomputation or backward; x is one
  LayerSlot x, output, output_gradient, x_gradient;
  bool forward_ends_with_turn = false;
};

struct RecomputeStyle {
  bool all = false;      // full recomputation runs the whole forward again, else what is read
  bool first = false;    // partial recomputation stands before the backward, else before its reader
  bool gathers = false;  // partial recomputation gathers again what it reads, else that is kept
  auto operator<=>(const RecomputeStyle&) const = default;
};
LayerPasses passes_of(const LayerProgram& program, strategy::Recompute recompute,
                      RecomputeStyle rerun = {});

}  // namespace piper::schedule
