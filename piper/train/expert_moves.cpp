#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/median.h>
#include <piper/base/units.h>
#include <piper/cost/expert_price.h>
#include <piper/cost/segment_time.h>
#include <piper/executor/clock.h>
#include <piper/sim/rebalanced_load.h>
#include <piper/train/expert_moves.h>
#include <piper/train/process_agreement.h>

#include <algorithm>
#include <string>

namespace piper::train {

// Process 0's, as text that brings every bit.
void ExpertMoves::price() {
  if (!run_.request.rebalance.is_on()) return;
  const std::string text = on_first_process(run_.world, "prices of experts", [this] {
    const strategy::Strategy& s = run_.request.strategy;
    const bool can_price = cost::unpriced(run_.request.cluster, s.precision).empty();
    Json prices = Json::object();
    for (const auto& [layer, price] :
         can_price || run_.request.rebalance.kind == balance::RebalanceKind::kPrice
             ? cost::expert_prices(run_.request.model, s, run_.request.cluster)
             : cost::expert_bytes(run_.request.model, s.precision))
      prices[std::to_string(layer)] = {price.bytes, price.seconds_per_row,
                                       price.seconds_per_expert};
    return prices.dump();
  });
  const Json prices = parse_json(text, "prices of experts");
  for (const auto& [layer, price] : prices.items())
    prices_[std::stoi(layer)] = {.bytes = price.at(0).get<int64_t>(),
                                 .seconds_per_row = price.at(1).get<double>(),
                                 .seconds_per_expert = price.at(2).get<double>()};
}

Rebalancer ExpertMoves::make_rebalancer(const RunShared& shared, const StartingPoint& start) const {
  Rebalancer rebalancer(run_.request.rebalance, prices_,
                        expert_ranks_per_node(run_.request.strategy, shared.topology),
                        shared.options.seed);
  const Json* loads = run_.request.rebalance.is_on() ? start.saved(kExpertLoads) : nullptr;
  if (loads != nullptr)
    rebalancer.read_window(*loads, num_experts_by_layer(run_.request.model), start.source());
  return rebalancer;
}

report::Migrated ExpertMoves::before_step(RankTrainer& trainer, const Rebalancer& rebalancer,
                                          int64_t number, bool predicts) {
  report::Migrated migrated;
  if (!rebalancer.is_due(number)) return migrated;
  if (trainer.rank() == Rank(0)) say_gain(number);
  const double start = executor::now_seconds();
  const std::vector<balance::LayerDecision> decisions =
      rebalancer.decide(number, trainer.placements());
  if (!decisions.empty()) trainer.migrate(kMigrationNumbers + number, next_placements(decisions));
  migrated.seconds = executor::now_seconds() - start;
  if (trainer.rank() != Rank(0) || decisions.empty()) return migrated;
  schedule::LayerMoves moves;
  for (const balance::LayerDecision& decision : decisions) {
    const int64_t experts = balance::num_migrated(decision.moves);
    migrated.experts += experts;
    migrated.bytes +=
        experts * prices_.at(decision.layer).bytes * cost::copies_of_states(run_.request.strategy);
    migrated.saved_seconds += decision.saved_seconds;
    gain_.promised += std::max(0.0, decision.saved_seconds);
    moves[decision.layer] = decision.moves;
  }
  if (predicts)
    migrated.predicted_seconds = sim::migration_seconds(
        moves, run_.request.model, run_.request.strategy, run_.request.cluster);
  say_migration(number, decisions, migrated);
  return migrated;
}

void ExpertMoves::note_step(double seconds) {
  if (run_.request.rebalance.is_on()) gain_.seconds.push_back(seconds);
}

// What the last migration brought, beside what it promised; then a new count begins.
void ExpertMoves::say_gain(int64_t number) {
  const double now = gain_.seconds.empty() ? 0 : median(gain_.seconds);
  if (gain_.promised > 0 && gain_.seconds_before > 0)
    run_.say(fmt::format(
        "up to step {} a step took {}, {} before experts moved: {:.3f} of it, {:.3f} as "
        "predicted",
        number - 1, format_seconds(now), format_seconds(gain_.seconds_before),
        now / gain_.seconds_before, 1 - gain_.promised / gain_.seconds_before));
  gain_ = {.seconds = {}, .seconds_before = now};
}

void ExpertMoves::say_migration(int64_t number,
                                const std::vector<balance::LayerDecision>& decisions,
                                const report::Migrated& migrated) const {
  double before = 1, after = 1;
  std::vector<int32_t> layers;
  for (const balance::LayerDecision& decision : decisions) {
    layers.push_back(decision.layer);
    before = std::max(before, decision.imbalance);
    after = std::max(after, decision.imbalance_after);
  }
  const std::string predicted =
      migrated.predicted_seconds > 0
          ? fmt::format(" ({} of it predicted for the moving; {} saved a step, as predicted)",
                        format_seconds(migrated.predicted_seconds),
                        format_seconds(std::max(0.0, migrated.saved_seconds)))
          : "";
  if (migrated.experts == 0) {
    run_.say(fmt::format(
        "before step {}: slots of layer{} {} hold copies of other experts{}; the busiest "
        "rank of those layers had {:.2f} times the mean, {:.2f} now",
        number, layers.size() > 1 ? "s" : "", fmt::join(layers, ", "),
        migrated.saved_seconds > 0 ? fmt::format(" ({} saved a step, as predicted)",
                                                 format_seconds(migrated.saved_seconds))
                                   : "",
        before, after));
    return;
  }
  run_.say(
      fmt::format("before step {}: {} experts of layer{} {} move, {} in {}{}; the busiest rank of "
                  "those layers had {:.2f} times the mean, {:.2f} now",
                  number, migrated.experts, layers.size() > 1 ? "s" : "", fmt::join(layers, ", "),
                  format_bytes(static_cast<double>(migrated.bytes)),
                  format_seconds(migrated.seconds), predicted, before, after));
}

}  // namespace piper::train
