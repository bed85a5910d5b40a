#include <piper/balance/rebalance.h>
#include <piper/cost/expert_price.h>
#include <piper/schedule/migration.h>
#include <piper/sim/rebalanced_load.h>
#include <piper/sim/simulate.h>

#include <cmath>

namespace piper::sim {
namespace {

// Shares as the rows of a whole step.
balance::LayerLoads counts_of(const cost::ExpertLoad& load, const balance::Placements& placements,
                              const model::Model& model, const strategy::Strategy& strategy) {
  balance::LayerLoads counts;
  for (const auto& [layer, placement] : placements) {
    const auto index = static_cast<size_t>(layer);
    const model::FeedForward& f = model.layers[index].feed_forward;
    const double rows =
        static_cast<double>(strategy.global_batch_sequences * f.top_k * strategy.sequence);
    const std::vector<double> even(static_cast<size_t>(f.num_experts),
                                   1.0 / static_cast<double>(f.num_experts));
    const bool is_even = load.share.empty() || load.share[index].empty();
    for (const double share : is_even ? even : load.share[index])
      counts[layer].push_back(std::llround(share * rows));
  }
  return counts;
}

}  // namespace

std::vector<RebalancedStep> rebalanced_steps(const balance::RebalancePolicy& policy,
                                             const cost::LoadDistribution& distribution,
                                             const model::Model& model,
                                             const strategy::Strategy& strategy,
                                             const cluster::Cluster& cluster, uint64_t seed,
                                             int64_t num_steps) {
  balance::RebalanceInput input{.policy = policy, .seed = seed};
  if (policy.is_on()) input.prices = cost::expert_prices(model, strategy, cluster);
  for (const auto& [layer, price] : input.prices)
    input.placements.emplace(layer,
                             balance::ExpertPlacement::plain(
                                 model.layers[static_cast<size_t>(layer)].feed_forward.num_experts,
                                 strategy.mesh.ep, strategy.redundant_experts));
  balance::LoadWindow window(policy.every);
  std::vector<RebalancedStep> steps;
  for (int64_t i = 0; i < num_steps; ++i) {
    RebalancedStep& step = steps.emplace_back();
    step.load = cost::sample_load(distribution, model, strategy.mesh.ep, seed, i, num_steps);
    if (!policy.is_on()) continue;
    if (i > 0 && i % policy.every == 0) {
      input.step = i;
      for (balance::LayerDecision& decision : balance::rebalance(input, window)) {
        const int64_t experts = balance::num_migrated(decision.moves);
        step.migrated_experts += experts * strategy.mesh.edp();
        step.migrated_bytes +=
            experts * cost::copies_of_states(strategy) * input.prices.at(decision.layer).bytes;
        step.moves[decision.layer] = std::move(decision.moves);
        input.placements.insert_or_assign(decision.layer, std::move(decision.placement));
      }
    }
    window.add(counts_of(step.load, input.placements, model, strategy));
    for (const auto& [layer, placement] : input.placements)
      if (!placement.is_plain()) step.load.placements.emplace(layer, placement);
  }
  return steps;
}

double migration_seconds(const schedule::LayerMoves& moves, const model::Model& model,
                         const strategy::Strategy& strategy, const cluster::Cluster& cluster) {
  if (moves.empty()) return 0;
  const schedule::StepGraph graph = schedule::write_migration(model, strategy, moves).step;
  return simulate(graph, cost::price(graph, model, strategy, cluster), /*keep_memory=*/false)
      .seconds();
}

cost::RebalancingGain gain_of(const std::vector<RebalancedStep>& steps,
                              std::vector<double>& seconds, const model::Model& model,
                              const strategy::Strategy& strategy, const cluster::Cluster& cluster) {
  cost::RebalancingGain gain;
  for (size_t i = 0; i < steps.size(); ++i) {
    gain.migrated_experts += steps[i].migrated_experts;
    gain.migrated_bytes += steps[i].migrated_bytes;
    const double moving = migration_seconds(steps[i].moves, model, strategy, cluster);
    gain.migration_seconds += moving;
    seconds[i] += moving;
  }
  gain.seconds = cost::spread_of(seconds);
  return gain;
}

}  // namespace piper::sim
