#include <piper/cost/prices.h>
#include <piper/cost/segment_time.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/search.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <tuple>

namespace piper::plan {
namespace {

constexpr int64_t kTasksPerLayer =
    20;  // about: forward and backward of a mixture layer with exchanges
constexpr int64_t kMostRounds = 8;
constexpr int64_t kMostTasksOfOne = 400'000, kMostTasksOfAll = 6'000'000;

auto tie_break(const Candidate& c) {
  const strategy::Strategy& s = c.strategy;
  return std::tuple(c.peak_bytes, s.mesh.pp, s.mesh.ep, s.recompute, s.micro_batch_sequences,
                    s.schedule != strategy::PipelineSchedule::k1F1B);
}

bool faster(const Candidate& a, const Candidate& b) {
  if (a.seconds != b.seconds) return a.seconds < b.seconds;
  return tie_break(a) < tie_break(b);
}

int64_t num_tasks(const model::Model& model, const strategy::Strategy& s, int64_t ranks) {
  return ranks * ((model.num_layers() + s.mesh.pp - 1) / s.mesh.pp) * s.num_micro_batches *
         kTasksPerLayer;
}

// Where equal tasks scatter, no pipeline is like another.
bool one_pipeline_stands_for_all(const cluster::Cluster& cluster, const strategy::Strategy& s) {
  return cost::scatter(cluster).none() && sim::why_not_symmetric(s, cluster).empty();
}

int64_t num_simulated_ranks(const cluster::Cluster& cluster, const strategy::Strategy& s) {
  return one_pipeline_stands_for_all(cluster, s) ? s.mesh.pp : s.mesh.world();
}

}  // namespace

namespace {

// With one message a pair, which has no scratch, where another exchange is what does not fit.
Candidate priced(const Setting& setting, strategy::Strategy strategy, cost::Estimator& estimator,
                 const ExchangeAxis& exchange) {
  cost::StepEstimate estimate = estimator.estimate(strategy);
  if (estimate.peak_bytes > setting.memory_limit_bytes && exchange.may_fall_back(strategy)) {
    strategy = exchange.with_plain_exchange(std::move(strategy));
    estimate = estimator.estimate(strategy);
  }
  return {std::move(strategy), estimate.seconds, estimate.peak_bytes};
}

}  // namespace

SearchResult search(const Setting& setting, const Space& space, cost::Estimator& estimator) {
  SearchResult result;
  ExchangeAxis exchange(setting.model(), setting.cluster(), setting.fixed().exchange);
  for (const Family& family : space.families) {
    FamilyResult& of = result.families.emplace_back(FamilyResult{.family = family});
    for_each_strategy(setting, family, estimator, exchange,
                      [&](const strategy::Strategy& strategy) {
                        Candidate candidate = priced(setting, strategy, estimator, exchange);
                        ++of.num_strategies;
                        if (!of.smallest || candidate.peak_bytes < of.smallest->peak_bytes)
                          of.smallest = candidate;
                        if (candidate.peak_bytes > setting.memory_limit_bytes) return;
                        ++of.num_feasible;
                        result.ranked.push_back(std::move(candidate));
                      });
    result.num_considered += of.num_strategies;
  }
  std::ranges::stable_sort(result.ranked, faster);
  return result;
}

std::vector<Rank> simulated_ranks(const cluster::Cluster& cluster,
                                  const strategy::Strategy& strategy) {
  if (!one_pipeline_stands_for_all(cluster, strategy)) return {};
  return strategy::RankLayout(strategy).group(strategy::Axis::kPipeline, Rank(0));
}

std::optional<double> simulated_seconds(const model::Model& model, const cluster::Cluster& cluster,
                                        const strategy::Strategy& strategy, int64_t max_tasks) {
  if (num_tasks(model, strategy, num_simulated_ranks(cluster, strategy)) > max_tasks)
    return std::nullopt;
  const schedule::StepGraph step =
      schedule::write_step(model, strategy, simulated_ranks(cluster, strategy));
  return sim::play_scattered(step, cost::price(step, model, strategy, cluster),
                             cost::scatter(cluster), false)
      .seconds();
}

namespace {

// Simulates those of a range that are not yet and fit the budget (in tasks); how many.
int64_t simulate_range(const Setting& setting, std::vector<Candidate>::iterator begin,
                       std::vector<Candidate>::iterator end, int64_t& budget) {
  int64_t done = 0;
  const int64_t plays = cost::scatter(setting.cluster()).none() ? 1 : sim::kScatteredPlays;
  for (auto c = begin; c != end; ++c) {
    if (c->simulated) continue;
    const int64_t tasks = plays * num_tasks(setting.model(), c->strategy,
                                            num_simulated_ranks(setting.cluster(), c->strategy));
    if (tasks > budget) continue;
    const std::optional<double> seconds =
        simulated_seconds(setting.model(), setting.cluster(), c->strategy, kMostTasksOfOne);
    if (!seconds) continue;
    budget -= tasks;
    c->seconds = *seconds;
    c->simulated = true;
    ++done;
  }
  return done;
}

}  // namespace

int64_t rerank_by_simulation(const Setting& setting, std::vector<Candidate>& ranked,
                             int64_t count) {
  int64_t budget = kMostTasksOfAll, done = 0;
  const auto end = ranked.begin() + std::min(count, static_cast<int64_t>(ranked.size()));
  // What the simulation slows down lets others up, which are simulated in their turn.
  for (int64_t before = -1, round = 0; done > before && round < kMostRounds; ++round) {
    before = done;
    done += simulate_range(setting, ranked.begin(), end, budget);
    std::ranges::stable_sort(ranked, faster);
  }
  return done;
}

}  // namespace piper::plan
