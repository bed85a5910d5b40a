// What every task and slot of a step costs: the one link between a graph (which knows no model) and
// the simulators.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/links.h>
#include <piper/model/model.h>
#include <piper/schedule/step.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace piper::cost {

// Rows that one rank sends to every place of an expert, by (layer, micro-batch, member of the
// stage): what a run's routers really chose. Experts are in dispatch order (by place), so no
// placement is asked.
using RoutedRows = std::map<std::tuple<int32_t, int32_t, int64_t>, std::vector<int64_t>>;

struct ExpertLoad {
  // Share of all routed rows that each expert of each layer receives: share[layer][expert], each
  // sums to 1. Empty (or an empty layer) = balanced. One distribution for all micro-batches.
  std::vector<std::vector<double>> share;
  // By layer, of a strategy with a capacity: the part of all choices that is routed, the rest being
  // dropped. Empty = what the capacity leaves of these shares when every sequence is alike.
  std::vector<double> kept;
  // All of a step, or empty. Where it is given, it decides and the shares are not read. With tokens
  // in chunks (strategy::num_moe_chunks): by chunk, then by expert.
  RoutedRows routed;
  // The same of collective::distinct_tokens, of a strategy that deduplicates; else empty.
  RoutedRows distinct;
  // Which ranks of the expert group hold which experts; layers that are not here are plain. Those
  // of other groups than the strategy's are refused.
  balance::Placements placements;
};

// Bytes of the tasks and slots of a step.
struct StepBytes {
  std::vector<int64_t>
      transient_bytes;  // by TaskId: above the slots, while a task runs; an exchange's scratch
  std::vector<int64_t> slot_bytes;  // by SlotId
};

struct Prices : StepBytes {
  std::vector<double>
      seconds;  // by TaskId. Compute: on a core (or device) of its own. Communication: from the
                // moment all members have posted.
  std::vector<int64_t> static_bytes;  // by rank: weights, gradients, optimizer, persistent buffers
  std::vector<int32_t> node_of_rank;  // ranks of one node share its cores
  int64_t cores_per_node = 0;         // 0 = every rank computes alone
  // From the moment when a rank gives its core back until the one that waited longest computes on
  // it.
  double core_hand_over_seconds = 0;
  Links links;  // what operations share; empty = nothing
};

// Rank i sits on device i. Requires contradictions(strategy, model) to be empty and world <=
// cluster.num_devices().
Prices price(const schedule::StepGraph& step, const model::Model& model,
             const strategy::Strategy& strategy, const cluster::Cluster& cluster,
             const ExpertLoad& load = {});

// The bytes of these prices alone, without the work of their seconds.
StepBytes step_bytes(const schedule::StepGraph& step, const model::Model& model,
                     const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                     const ExpertLoad& load = {});

}  // namespace piper::cost
