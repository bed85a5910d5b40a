#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/slowed.h>
#include <piper/cost/segment_time.h>
#include <piper/plan/replan.h>
#include <piper/plan/simulated_step.h>
#include <piper/plan/split.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/sim/disturbance.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

using strategy::Strategy;

// How many of the fastest by their closed form are simulated; a strategy counts for each split.
constexpr size_t kMostSimulations = 24;
// How many of these are simulated once more with task times that scatter, which takes several
// simulations each.
constexpr size_t kMostScattered = 3;

class Replanning {
 public:
  Replanning(const Request& request, const ObservedMachine& machine)
      : request_(request),
        machine_(machine),
        fastest_(std::ranges::min(machine.compute)),
        cluster_(cluster::slowed(*request.cluster, fastest_, machine.links)) {
    request_.cluster = &cluster_;
    estimator_ = request_.estimator();
    for (size_t rank = 0; rank < machine_.compute.size(); ++rank)
      if (machine_.compute[rank] > fastest_)
        stragglers_.stragglers.push_back({Rank(static_cast<int64_t>(rank)), slowness(rank)});
  }

  bool can_simulate(const Strategy& s) const { return may_simulate(*estimator_, s); }

  double seconds(const Strategy& s, bool scatters = true) {
    cost::PricedStep priced = estimator_->priced_step(s, {}, request_.imbalance_at(s.mesh.ep));
    sim::disturb(priced.step, stragglers_, priced.prices);
    const cost::Scatter scatter =
        scatters && estimator_->is_exact() ? cost::scatter(cluster_) : cost::Scatter{};
    return sim::simulate_scattered(priced.step, priced.prices, scatter, false).seconds();
  }

  // The few that are fastest where nothing scatters.
  std::vector<Strategy> fastest(std::vector<Strategy> candidates) {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < candidates.size(); ++i)
      order.emplace_back(seconds(candidates[i], false), i);
    std::ranges::sort(order);
    if (order.size() > kMostScattered) order.resize(kMostScattered);
    std::vector<Strategy> few;
    for (const auto& [seconds, i] : order) few.push_back(std::move(candidates[i]));
    return few;
  }

  // Fastest first, as far as closed forms know; pipelines with both splits.
  std::vector<Strategy> candidates(const Accepts& accepts) {
    const Plan plan = search(request_);
    std::vector<Strategy> found;
    const auto add = [&](const Candidate& c) {
      found.push_back(c.strategy);
      if (auto divided = divided_by_speed(c.strategy)) found.push_back(std::move(*divided));
    };
    for (const FamilyBest& family : plan.families)  // so that none is crowded out
      if (family.best) add(*family.best);
    for (const Candidate& c : plan.ranked) add(c);
    std::set<std::string> known;
    std::erase_if(found, [&](const Strategy& s) {
      return !can_simulate(s) || (accepts && !accepts(s)) ||
             !known.insert(strategy::to_json(s).dump()).second;
    });
    if (found.size() > kMostSimulations) found.resize(kMostSimulations);
    return found;
  }

 private:
  double slowness(size_t rank) const { return machine_.compute[rank] / fastest_; }

  // Each stage's layers by its slowest rank, where that fits.
  std::optional<Strategy> divided_by_speed(const Strategy& s) {
    if (s.mesh.pp == 1 || stragglers_.stragglers.empty()) return std::nullopt;
    const strategy::RankLayout layout(s);
    std::vector<double> of_stage(static_cast<size_t>(s.mesh.pp), 1);
    for (size_t rank = 0; rank < machine_.compute.size(); ++rank) {
      double& stage = of_stage[static_cast<size_t>(layout.stage(Rank(static_cast<int64_t>(rank))))];
      stage = std::max(stage, slowness(rank));
    }
    std::vector<double> of_virtual_stage(s.layers_per_stage.size());
    for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
      for (const schedule::RankChunk& chunk : schedule::chunks_of(s, stage))
        of_virtual_stage[static_cast<size_t>(chunk.stage)] = of_stage[static_cast<size_t>(stage)];
    const double imbalance = request_.imbalance_at(s.mesh.ep);
    const cost::PassSeconds pass = estimator_->pass_seconds(s, imbalance);
    Strategy divided = s;
    divided.layers_per_stage = balanced_split(pass.layers, pass.embedding, pass.head,
                                              std::ssize(s.layers_per_stage), of_virtual_stage);
    if (divided.layers_per_stage == s.layers_per_stage ||
        estimator_->bytes(divided, imbalance).peak_bytes > request_.memory_limit_bytes)
      return std::nullopt;
    return divided;
  }

  Request request_;
  const ObservedMachine& machine_;
  double fastest_;
  cluster::Cluster cluster_;
  std::unique_ptr<cost::Estimator> estimator_;
  sim::Disturbance stragglers_;
};

}  // namespace

std::optional<Proposal> propose(const Request& request, const Strategy& present,
                                const ObservedMachine& machine, const Accepts& accepts) {
  PIPER_CHECK(std::ssize(machine.compute) == present.mesh.world(), "one figure a rank");
  Replanning replanning(request, machine);
  if (!replanning.can_simulate(present)) return std::nullopt;
  Proposal best{.strategy = present, .seconds_staying = replanning.seconds(present)};
  best.seconds = best.seconds_staying;
  for (const Strategy& s : replanning.fastest(replanning.candidates(accepts)))
    if (const double seconds = replanning.seconds(s); seconds < best.seconds) {
      best.strategy = s;
      best.seconds = seconds;
    }
  if (best.seconds == best.seconds_staying) return std::nullopt;
  return best;
}

}  // namespace piper::plan
