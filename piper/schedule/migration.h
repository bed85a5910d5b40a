// Experts that change their rank between two steps, as a graph: what `cost` prices, `sim` simulates
// and `executor` executes, as it does a step's.
//
//   rank that an expert leaves    take expert --> send
//   rank that it comes to                         receive --> put expert
//
// A take copies the expert's state into a slot: the master weights and both moments (Adam's
// gradients are dead between two steps, so 12 bytes a parameter in fp32 and bf16 where the paper's
// Table IV counts 16). A put copies a slot into the rank's parameters and rounds the weights again.
// An expert that only changes its index on the rank is taken and put there. In one layer a rank
// takes all before it puts any, since a place that is written was another expert's; the next
// layer's receives wait for the puts of the one before, which bounds the memory.
//
// Every replica of the expert group does the same with its own copy, so nothing crosses replicas;
// nor do parts of experts whose matrices several ranks share (expert-tensor parallelism) meet.
// Under ZeRO a replica has the states of a share of its parameters alone, as reductions cut the
// gradients of its experts (collective::reduce_share). An expert's states then travel in pieces,
// from each replica that had a part of them to each that answers for it at the new place; the
// weights that follow from them are gathered by the next step, as after an update.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/schedule/step.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace piper::schedule {

// By global layer; ranks of the moves are ep indices.
using LayerMoves = std::map<int32_t, std::vector<balance::ExpertMove>>;

// Elements [begin, end) of one of an expert's two tensors (0: its projections in, 1: the one out),
// row by row.
struct StatePiece {
  int32_t tensor = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const StatePiece&) const = default;
};
using StatePieces = std::vector<StatePiece>;  // ascending

struct Migration {
  StepGraph step;
  std::vector<StatePieces> pieces;  // by segment: what its task takes, moves or puts
};

// Elements of the two tensors of an expert of this layer, as one rank holds them: of its part of
// the width where ranks share an expert's matrices.
std::array<int64_t, 2> expert_tensors(const model::Model& model, const strategy::Strategy& strategy,
                                      int32_t layer);

// Requires contradictions(strategy, model) to be empty and layers with experts (PIPER_CHECK). The
// result is sound (graph::validate) and free of deadlock.
Migration write_migration(const model::Model& model, const strategy::Strategy& strategy,
                          const LayerMoves& moves);

}  // namespace piper::schedule
