// One action of a stage (schedule/action.h) as a list of pieces: computing, collectives that are
// posted, and waits for them. The same list for every rank of the stage and nearly every
// micro-batch; whole_step.h turns pieces into tasks.
//
// A layer's forward:
//
//   post tensor  compute attention ...  wait  compute | post keys and values  compute ...  wait | compute the rest
//   post dispatch  compute ...  turn  wait | compute experts | post combine  compute ...  turn  wait
//
// While a posted collective runs, as much is computed as the stack says it hides (`...`); what
// follows waits. So alone it costs exactly what the closed form says, and a collective that others
// slow down costs what no longer hides. At a `turn` DualPipeV goes on with the other micro-batch of
// a pair.
//
// Traffic of states: the part that hides runs beside a layer's computing, the rest before it (with
// ZeRO 2 and 3, every micro-batch), or at the end of the step (whole_step.h).
#pragma once

#include <piper/graph/graph.h>
#include <piper/schedule/step.h>
#include <piper/stack/step_parts.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <vector>

namespace piper::stack {

struct Piece {
  enum class Kind : uint8_t { kCompute, kPost, kWait, kTurn } kind = Kind::kCompute;
  graph::Phase phase = graph::Phase::kForward;
  schedule::Segment segment;
  double seconds = 0;  // of computing
  // kPost:
  graph::TaskKind task = graph::TaskKind::kCollective;
  strategy::Axis axis = strategy::Axis::kTensor;  // whose collective it is
  cost::Moves moves;
  const cost::LevelNeeds* needs = nullptr;  // of this one; else its group's
  int32_t post =
      -1;  // kPost: its number in this list; kWait: whom it waits for. The update waits for all
};

// What an action does beside its layers.
struct ActionKind {
  graph::Phase phase = graph::Phase::kForward;  // not kRecompute, not kUpdate
  bool gathers = false;  // the first forward of a step: weights that were updated come in
  bool reduces = false;  // the last that adds to the chunk's gradients
  // a backward: gradients of weights are made while the rows of the next exchange travel
  bool is_paired = false;
};

// The traffic of states goes with every micro-batch (gathers of ZeRO 3, scatters of ZeRO 2 and 3).
struct EveryMicroBatch {
  bool gathers = false, reduces = false;
};

std::vector<Piece> pieces_of(const ChunkPart& chunk, const StagePart& stage, const StepParts& step,
                             const model::Model& model, EveryMicroBatch every, ActionKind action);

}  // namespace piper::stack
