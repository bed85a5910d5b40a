// What a placement makes of the experts' loads: the loads of the ranks that hold them.
//
// Loads are rows routed to an expert, counted over a window of steps: integers, so that every rank
// of a run computes the same sums and comes to the same decision, whatever its processor.
#pragma once

#include <piper/balance/expert_placement.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace piper::balance {

// [num_experts], each at least 0.
using Loads = std::vector<int64_t>;

// Sums over each rank's experts; copies of one share its rows evenly, what does not divide goes to
// the first. Requires as many loads as experts (PIPER_CHECK).
std::vector<int64_t> rank_loads(const ExpertPlacement& placement, const Loads& loads);

// Returns the rows of the rank that has most of them.
int64_t busiest_load(const ExpertPlacement& placement, const Loads& loads);

// Rows of the busiest rank over the mean; 1 where there are none. This is the metric of all
// thresholds here: the paper's section VI-A states neither metric nor value.
double imbalance(const std::vector<int64_t>& rank_loads);
double imbalance(const ExpertPlacement& placement, const Loads& loads);

// The least that any placement with one copy of each expert can reach: the mean, or the busiest
// expert alone where that is more. Over the mean, as imbalance().
double least_imbalance(const Loads& loads, int64_t num_ranks);

// What a search for a better placement must keep to.
struct SearchLimits {
  double threshold = 1;  // it ends once the imbalance is no greater
  // Experts that may change their rank; a swap is two.
  int64_t max_migrated = std::numeric_limits<int64_t>::max();
  // Ranks of a node, in the order of the group; 0: the group is one node.
  int64_t ranks_per_node = 0;
  // What a migration between nodes costs where one inside a node costs 1.
  double cost_between_nodes = 4;
  // Experts that a rank may hold; 0: as many as now, so experts are exchanged and none moves alone.
  int64_t max_experts_per_rank = 0;
};

// The result of a search. `num_swaps` are exchanges of two experts, or single moves.
struct Rebalanced {
  ExpertPlacement placement;
  int64_t num_swaps = 0;
};

}  // namespace piper::balance
