#include <piper/balance/copies.h>
#include <piper/balance/hill_climb.h>
#include <piper/balance/longest_first.h>
#include <piper/balance/pair_search.h>
#include <piper/balance/rebalance.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace piper::balance {
namespace {

struct Candidate {
  Rebalanced result;
  const char* by;
};

// One layer's question.
class Layer {
 public:
  Layer(const RebalanceInput& input, int32_t layer, Loads loads, Loads older, Loads newer,
        int64_t steps)
      : input_(input),
        layer_(layer),
        now_(input.placements.at(layer)),
        price_(input.prices.at(layer)),
        loads_(std::move(loads)),
        older_(std::move(older)),
        newer_(std::move(newer)),
        steps_(static_cast<double>(steps)) {}

  int64_t bytes() const { return price_.bytes; }
  double imbalance_now() const { return imbalance(now_, loads_); }

  LayerDecision decide(int64_t max_migrated) const {
    switch (input_.policy.kind) {
      case RebalanceKind::kOff:
        break;
      case RebalanceKind::kThreshold:
        return decision(
            {pair_search(now_, loads_, limits(input_.policy.number, max_migrated)), "pair search"});
      case RebalanceKind::kPrice:
        return by_price(max_migrated);
      case RebalanceKind::kReplicate:
        return decision({{most_even(), 0}, "replication"});
      case RebalanceKind::kShadow:
        return decision({{shadow(now_, loads_, slots_for_copies(now_)), 0}, "shadowing"});
      case RebalanceKind::kRandom:
        return decision({exchanged(max_migrated), "random"});
    }
    return decision({{now_, 0}, ""});
  }

 private:
  SearchLimits limits(double threshold, int64_t max_migrated) const {
    return {.threshold = threshold,
            .max_migrated = max_migrated,
            .ranks_per_node = input_.ranks_per_node};
  }

  double saved_a_step(const ExpertPlacement& next, const Loads& loads, double steps) const {
    return price_.seconds_per_row *
           static_cast<double>(busiest_load(now_, loads) - busiest_load(next, loads)) / steps;
  }

  LayerDecision decision(Candidate candidate) const {
    LayerDecision made{.layer = layer_, .placement = std::move(candidate.result.placement)};
    made.moves = moves_between(now_.homes(), made.placement.homes());
    made.by = candidate.by;
    made.imbalance = imbalance_now();
    made.imbalance_after = imbalance(made.placement, loads_);
    made.saved_seconds = saved_a_step(made.placement, loads_, steps_);
    made.cost_seconds = price_.seconds_per_expert *
                        static_cast<double>(busiest_transfers(made.moves, now_.num_ranks()));
    return made;
  }

  // What stays is not changed for nothing.
  ExpertPlacement most_even() const {
    ExpertPlacement best = now_;
    const int64_t slots = slots_for_copies(now_);
    for (ExpertPlacement next : {share_evenly(now_, loads_, slots), shadow(now_, loads_, slots)})
      if (busiest_load(next, loads_) < busiest_load(best, loads_)) best = std::move(next);
    return best;
  }

  double trust() const {
    if (older_.empty() || newer_.empty()) return 1;
    const ExpertPlacement plan = pair_search(now_, older_).placement;
    const double promised =
        static_cast<double>(busiest_load(now_, older_) - busiest_load(plan, older_));
    const double kept =
        static_cast<double>(busiest_load(now_, newer_) - busiest_load(plan, newer_));
    return promised > 0 ? std::clamp(kept / promised, 0.0, 1.0) : 1;
  }

  LayerDecision by_price(int64_t max_migrated) const {
    std::vector<Candidate> candidates;
    for (const double threshold : {1.5, 1.2, 1.1, 1.05, 1.0})
      candidates.push_back(
          {pair_search(now_, loads_, limits(threshold, max_migrated)), "pair search"});
    candidates.push_back({hill_climb(now_, loads_), "hill climbing"});
    candidates.push_back({longest_first(now_, loads_), "longest first"});
    const double trusted = trust() * static_cast<double>(input_.policy.every);
    LayerDecision best = decision({{now_, 0}, ""});
    double most = 0;
    for (Candidate& candidate : candidates) {
      LayerDecision one = decision(std::move(candidate));
      if (num_migrated(one.moves) > max_migrated) continue;
      const double net = trusted * one.saved_seconds - one.cost_seconds;
      if (net > most) {
        most = net;
        best = std::move(one);
      }
    }
    return best;
  }

  // Pairs of ranks exchange experts, each at most once. std::shuffle and distributions differ
  // between libraries; the bits of the engine do not.
  Rebalanced exchanged(int64_t max_migrated) const {
    std::mt19937_64 random(input_.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(input_.step) +
                           (static_cast<uint64_t>(layer_) << 32));
    const auto below = [&](int64_t end) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
    };
    std::vector<int64_t> order(loads_.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    const auto wanted =
        static_cast<int64_t>(input_.policy.number * static_cast<double>(loads_.size()) + 0.999);
    int64_t left = std::min(max_migrated, std::max<int64_t>(2, wanted));
    Rebalanced result{now_, 0};
    std::vector<char> moved(loads_.size());
    for (size_t i = 0; i < order.size() && left >= 2; ++i)
      for (size_t j = i + 1; j < order.size() && moved[i] == 0; ++j) {
        if (moved[j] != 0 || now_.rank_of(order[i]) == now_.rank_of(order[j])) continue;
        result.placement = result.placement.swapped(order[i], order[j]);
        ++result.num_swaps;
        moved[i] = moved[j] = 1;
        left -= 2;
      }
    return result;
  }

  const RebalanceInput& input_;
  int32_t layer_;
  const ExpertPlacement& now_;
  const ExpertPrice& price_;
  Loads loads_, older_, newer_;
  double steps_;
};

}  // namespace

int64_t busiest_transfers(const std::vector<ExpertMove>& moves, int64_t num_ranks) {
  std::vector<int64_t> sent(static_cast<size_t>(num_ranks)), received(sent);
  for (const ExpertMove& move : moves) {
    if (!move.changes_rank()) continue;
    ++sent[static_cast<size_t>(move.from_rank)];
    ++received[static_cast<size_t>(move.to_rank)];
  }
  return std::max(std::ranges::max(sent), std::ranges::max(received));
}

std::vector<LayerDecision> rebalance(const RebalanceInput& input, const LoadWindow& window) {
  std::vector<LayerDecision> decisions;
  if (!input.policy.is_on() || window.num_steps() == 0) return decisions;
  const LayerLoads sums = window.sums(), older = window.older(), newer = window.newer();
  const auto of = [](const LayerLoads& all, int32_t layer) {
    const auto found = all.find(layer);
    return found == all.end() ? Loads() : found->second;
  };
  std::vector<Layer> layers;
  for (const auto& [layer, placement] : input.placements)
    layers.emplace_back(input, layer, of(sums, layer), of(older, layer), of(newer, layer),
                        window.num_steps());

  // Without a limit every layer decides for itself; with one, the neediest first.
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < layers.size(); ++i) order.emplace_back(-layers[i].imbalance_now(), i);
  std::ranges::sort(order);
  int64_t left = input.policy.budget_bytes;
  for (const auto& [need, i] : order) {
    const int64_t bytes = layers[i].bytes();
    const bool limited = input.policy.budget_bytes > 0;
    LayerDecision made = layers[i].decide(limited ? left / std::max<int64_t>(1, bytes)
                                                  : std::numeric_limits<int64_t>::max());
    if (made.placement == input.placements.at(made.layer)) continue;
    left -= limited ? bytes * num_migrated(made.moves) : 0;
    decisions.push_back(std::move(made));
  }
  std::ranges::sort(decisions, {}, &LayerDecision::layer);
  return decisions;
}

}  // namespace piper::balance
