// A run of steps under a load of the experts, with a policy that moves experts between them: what
// `sim` simulates and `plan` prices of rebalancing. Loads are drawn as for any other question
// (cost::sample_load), decisions are the executor's own (balance::rebalance).
#pragma once

#include <piper/balance/rebalance_policy.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/load_distribution.h>
#include <piper/model/model.h>
#include <piper/schedule/migration.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::sim {

struct RebalancedStep {
  cost::ExpertLoad load;  // with the placements of this step
  // What moved before it, of every expert group alike, and the sums over all ranks.
  schedule::LayerMoves moves;
  int64_t migrated_experts = 0, migrated_bytes = 0;
};

// Steps 0 .. num_steps - 1 of a run with these samples, in their order; a policy that is off moves
// nothing. Throws InvalidInput as sample_load(), expert_prices().
std::vector<RebalancedStep> rebalanced_steps(const balance::RebalancePolicy& policy,
                                             const cost::LoadDistribution& distribution,
                                             const model::Model& model,
                                             const strategy::Strategy& strategy,
                                             const cluster::Cluster& cluster, uint64_t seed,
                                             int64_t num_steps);

// Seconds of these moves between two steps: the graph that the executor runs, simulated. 0 without
// moves.
double migration_seconds(const schedule::LayerMoves& moves, const model::Model& model,
                         const strategy::Strategy& strategy, const cluster::Cluster& cluster);

// What moved before these steps, and for how long. `seconds`: of each step without that, and then
// with it. The steps without any moves, and whether it pays, are left open.
cost::RebalancingGain gain_of(const std::vector<RebalancedStep>& steps,
                              std::vector<double>& seconds, const model::Model& model,
                              const strategy::Strategy& strategy, const cluster::Cluster& cluster);

}  // namespace piper::sim
