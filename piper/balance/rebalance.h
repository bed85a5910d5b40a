// What chooses among the searches: from a window of loads to the next placement of every layer.
//
// By threshold the pair search is taken, which stops as soon as the threshold is kept. By price,
// every layer's candidates are the pair search at several thresholds, Algorithm 2 and a placement
// from scratch (longest_first.h); the one that saves most seconds over what it costs wins, and a
// layer where none saves any keeps what it has:
//
//   saved  = horizon x seconds_per_row x (rows of the busiest rank a step, before - after) x trust
//   cost   = the most experts that a rank sends or receives x seconds_per_expert
//   trust  = what a plan from the window's older half would have saved in its newer half, over what
//            it promised: 1 for a load that stays, about 0 for noise
//
// The same input gives the same placements on every rank.
#pragma once

#include <piper/balance/load_window.h>
#include <piper/balance/rebalance_policy.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::balance {

// These are the costs of moving and computing one expert of a layer.
struct ExpertPrice {
  int64_t bytes = 0;              // that travel when it moves
  double seconds_per_row = 0;     // forward and backward, of a row that the busiest rank has more
  double seconds_per_expert = 0;  // of a rank that sends or receives one inside its node
};

struct RebalanceInput {
  RebalancePolicy policy;
  Placements placements;  // of every layer with experts
  std::map<int32_t, ExpertPrice> prices;
  int64_t ranks_per_node = 0;  // SearchLimits
  uint64_t seed = 0;           // of `random`, with the step
  int64_t step = 0;
};

// What becomes of one layer.
struct LayerDecision {
  int32_t layer = -1;
  ExpertPlacement placement;  // from now on
  std::vector<ExpertMove> moves;
  const char* by = "";                        // the search that won
  double imbalance = 1, imbalance_after = 1;  // under the window's loads
  double saved_seconds = 0;                   // a step, as predicted
  double cost_seconds = 0;                    // once
};

// The layers that change, ascending; none where nothing is to be gained. With a budget the most
// uneven layer is served first, and what is beyond it is left for the next decision. Every layer
// with a placement has a price and loads in the window.
std::vector<LayerDecision> rebalance(const RebalanceInput& input, const LoadWindow& window);

// The most experts that one rank sends or receives.
int64_t busiest_transfers(const std::vector<ExpertMove>& moves, int64_t num_ranks);

}  // namespace piper::balance
