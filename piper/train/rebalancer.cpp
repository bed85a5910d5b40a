#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/train/rebalancer.h>

#include <algorithm>
#include <limits>

namespace piper::train {

std::vector<std::string> problems(const balance::RebalancePolicy& policy,
                                  const strategy::Strategy& strategy,
                                  const std::map<int32_t, balance::ExpertPrice>& experts) {
  std::vector<std::string> problems;
  if (!policy.is_on()) return problems;
  const std::string what = "--rebalance is " + balance::to_text(policy);
  if (experts.empty()) problems.push_back(what + ", but the model is dense; allowed: off");
  if (strategy.mesh.ep == 1)
    problems.push_back(what +
                       ", but ep is 1: no rank could take an expert; allowed: off, or ep "
                       "from 2");
  if (std::string line = balance::contradiction(policy, strategy.redundant_experts); !line.empty())
    problems.push_back(std::move(line));
  if (strategy::compresses_experts(strategy))
    problems.push_back(what +
                       ", but experts that travel as residuals do not move; allowed: off, or "
                       "--expert-compression 1");
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const auto& [layer, price] : experts) smallest = std::min(smallest, price.bytes);
  if (policy.budget_bytes > 0 && !experts.empty() && policy.budget_bytes < 2 * smallest)
    problems.push_back(fmt::format(
        "--rebalance-budget is {}; allowed: at least the two experts of an exchange, {} each",
        format_bytes(static_cast<double>(policy.budget_bytes)),
        format_bytes(static_cast<double>(smallest))));
  return problems;
}

std::map<int32_t, int64_t> num_experts_by_layer(const model::Model& model) {
  std::map<int32_t, int64_t> num;
  for (int32_t layer = 0; layer < std::ssize(model.layers); ++layer)
    if (const int64_t experts = model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
        experts > 0)
      num.emplace(layer, experts);
  return num;
}

bool suits(const balance::ExpertPlacement& placement, const strategy::Strategy& strategy) {
  return placement.has_homes_first() &&
         placement.num_places() == strategy::num_places(strategy, placement.num_experts());
}

balance::Placements read_placements(const std::string& path, const model::Model& model,
                                    const strategy::Strategy& strategy) {
  balance::Placements placements =
      balance::placements_from_json(read_json_file(path), num_experts_by_layer(model), path);
  std::vector<std::string> problems;
  for (const auto& [layer, placement] : placements)
    if (placement.num_ranks() != strategy.mesh.ep || !suits(placement, strategy))
      problems.push_back(fmt::format(
          "{}: layer {} is placed as {}; allowed: one copy of each expert{}, equally many on each "
          "of "
          "the {} ranks of an expert group",
          path, layer, balance::to_text(placement),
          strategy.redundant_experts > 0
              ? fmt::format(", then {} more of others' experts", strategy.redundant_experts)
              : "",
          strategy.mesh.ep));
  if (!problems.empty()) throw InvalidInput(problems);
  return placements;
}

int64_t expert_ranks_per_node(const strategy::Strategy& strategy,
                              const collective::Topology& topology) {
  const std::vector<Rank> group =
      strategy::RankLayout(strategy).group(strategy::Axis::kExpert, Rank(0));
  const collective::Topology among = collective::topology_among(topology, group);
  const std::vector<int32_t>& node = among.unit.front();
  const auto each = std::ranges::count(node, node.front());
  if (each == std::ssize(node)) return 0;
  for (size_t i = 0; i < node.size(); ++i)
    if (node[i] != static_cast<int32_t>(static_cast<std::ptrdiff_t>(i) / each)) return 0;
  return each;
}

Rebalancer::Rebalancer(balance::RebalancePolicy policy,
                       std::map<int32_t, balance::ExpertPrice> prices, int64_t ranks_per_node,
                       uint64_t seed)
    : policy_(policy),
      prices_(std::move(prices)),
      ranks_per_node_(ranks_per_node),
      seed_(seed),
      window_(policy.every) {}

void Rebalancer::note(const report::StepOutcome& outcome) {
  if (policy_.is_on()) window_.add(outcome.expert_rows);
}

bool Rebalancer::is_due(int64_t number) const {
  return policy_.is_on() && number > 1 && (number - 1) % policy_.every == 0;
}

std::vector<balance::LayerDecision> Rebalancer::decide(
    int64_t number, const balance::Placements& placements) const {
  return balance::rebalance({.policy = policy_,
                             .placements = placements,
                             .prices = prices_,
                             .ranks_per_node = ranks_per_node_,
                             .seed = seed_,
                             .step = number},
                            window_);
}

balance::Placements displaced(const balance::Placements& placements) {
  balance::Placements some;
  for (const auto& [layer, placement] : placements)
    if (placement !=
        balance::ExpertPlacement::plain(placement.num_experts(), placement.num_ranks(),
                                        placement.num_places() - placement.num_experts()))
      some.emplace(layer, placement);
  return some;
}

balance::Placements next_placements(const std::vector<balance::LayerDecision>& decisions) {
  balance::Placements next;
  for (const balance::LayerDecision& decision : decisions)
    next.emplace(decision.layer, decision.placement);
  return next;
}

}  // namespace piper::train
