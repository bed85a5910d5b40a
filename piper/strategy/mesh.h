// Rank <-> coordinates, and the groups of every axis. Order, innermost first: ep, edp, pp
// (Megatron's ep-dp-pp), so that an expert-parallel group sits on neighbouring devices.
//
//   rank = pp_index * dp + dp_index,   dp_index = edp_index * ep + ep_index
#pragma once

#include <piper/base/strong_id.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::strategy {

struct Coordinates {
  int64_t pp = 0;
  int64_t dp = 0;   // 0 .. dp-1: which share of the batch
  int64_t ep = 0;   // dp % ep: which experts
  int64_t edp = 0;  // dp / ep: which replica of them
  bool operator==(const Coordinates&) const = default;
};

// All functions require degrees >= 1, ep a divisor of dp, and ranks and indices inside the mesh
// (PIPER_CHECK).
Coordinates coordinates(const Mesh& mesh, Rank rank);
Rank rank_at(const Mesh& mesh, int64_t pp, int64_t dp);

// Members in ascending order of the axis index.
//   data_group          same stage: dense parameters are equal here
//   expert_group        same stage and edp: tokens are exchanged here
//   expert_data_group   same stage and ep index: expert parameters are equal here
//   pipeline_group      same dp index
std::vector<Rank> data_group(const Mesh& mesh, Rank rank);
std::vector<Rank> expert_group(const Mesh& mesh, Rank rank);
std::vector<Rank> expert_data_group(const Mesh& mesh, Rank rank);
std::vector<Rank> pipeline_group(const Mesh& mesh, Rank rank);

// The experts of a layer with num_experts that ep index `ep` holds: [first, first + count). Uneven
// counts when ep does not divide num_experts are refused by contradictions().
struct ExpertRange {
  int64_t first = 0;
  int64_t count = 0;
};
ExpertRange experts_of(const Mesh& mesh, int64_t num_experts, int64_t ep_index);

// First layer of a stage, from layers_per_stage.
int64_t first_layer(const Strategy& strategy, int64_t stage);

}  // namespace piper::strategy
