#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/simulated_steps.h>
#include <piper/cost/estimator.h>
#include <piper/cost/prices.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/cost/trainer/shape_prices.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/rebalanced_load.h>
#include <piper/sim/simulate.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::cli {
namespace {

using graph::Stream;

constexpr int64_t kMostRanksSimulated = 64;

// Length of the union of the intervals of `communication` less what `compute` covers; both sorted
// by start.
double uncovered(const std::vector<graph::Interval>& communication,
                 const std::vector<graph::Interval>& compute) {
  double seconds = 0, reached = 0;
  for (const graph::Interval& interval : communication) {
    double from = std::max(interval.start_seconds, reached);
    reached = std::max(reached, interval.end_seconds);
    auto busy = std::ranges::upper_bound(compute, from, {}, &graph::Interval::end_seconds);
    for (; from < interval.end_seconds && busy != compute.end(); ++busy) {
      seconds += std::max(0.0, std::min(busy->start_seconds, interval.end_seconds) - from);
      from = std::max(from, busy->end_seconds);
    }
    seconds += std::max(0.0, interval.end_seconds - from);
  }
  return seconds;
}

// Waiting for a message is no computing.
std::vector<graph::Interval> intervals(const SimulatedSteps& simulated, Rank rank, Stream stream) {
  std::vector<graph::Interval> list;
  for (const graph::TaskId id : simulated.step.graph.stream(rank, stream)) {
    const graph::Task& task = simulated.step.graph.task(id);
    if (!task.segment.valid() || simulated.step.segment(task).kind != schedule::SegmentKind::kWait)
      list.push_back(simulated.timeline.tasks[id.index()]);
  }
  std::ranges::sort(list, {}, &graph::Interval::start_seconds);
  return list;
}

RankShare share_of(const SimulatedSteps& simulated, Rank rank) {
  RankShare share{.rank = rank, .peak_bytes = simulated.timeline.peak_bytes[rank.index()]};
  const std::vector<graph::Interval> compute = intervals(simulated, rank, Stream::kCompute);
  for (const graph::Interval& interval : compute)
    share.compute_seconds += interval.end_seconds - interval.start_seconds;
  std::vector<graph::Interval> moving = intervals(simulated, rank, Stream::kExchange);
  for (const Stream beside : {Stream::kStates, Stream::kHost})
    std::ranges::copy(intervals(simulated, rank, beside), std::back_inserter(moving));
  std::ranges::sort(moving, {}, &graph::Interval::start_seconds);
  share.exposed_seconds = uncovered(moving, compute);
  share.idle_seconds =
      std::max(0.0, simulated.timeline.seconds() - share.compute_seconds - share.exposed_seconds);
  return share;
}

// A task takes about half a kilobyte while it is simulated.
void check_size(const Priced& priced, double tasks, int64_t num_ranks) {
  constexpr double kMostTasks = 30e6;
  if (tasks > kMostTasks)
    throw InvalidInput(fmt::format(
        "num_micro_batches is {}: about {} tasks to simulate on {} ranks; allowed: up to {} "
        "(`piper estimate` prices any number)",
        priced.strategy.num_micro_batches, format_count(tasks), num_ranks,
        format_count(kMostTasks)));
}

// Empty: all. `why_not`: one pipeline does not stand for all.
std::vector<Rank> ranks_to_simulate(const Priced& priced, const SimulationRequest& request,
                                    const std::string& why_not, std::vector<Rank> pipeline,
                                    SimulatedSteps& simulated) {
  if (priced.strategy.mesh.world() <= kMostRanksSimulated) return {};
  simulated.why_all = request.all_ranks             ? "as asked for"
                      : !request.disturbance.none() ? "ranks are not equally fast"
                                                    : why_not;
  simulated.one_pipeline = simulated.why_all.empty();
  if (!simulated.one_pipeline) return {};
  return pipeline;
}

// The steps of the run that the samples are; none without a load. With a policy, experts move
// between them.
std::vector<sim::RebalancedStep> steps_of(const Priced& priced, const SimulationRequest& request) {
  if (!request.load) return {};
  if (const std::string line =
          balance::contradiction(request.rebalance, priced.strategy.redundant_experts);
      !line.empty())
    throw InvalidInput(line);
  if (request.rebalance.is_on() && strategy::compresses_experts(priced.strategy))
    throw InvalidInput(
        "--rebalance: experts that travel as residuals do not move; allowed: off, or "
        "--expert-compression 1");
  return sim::rebalanced_steps(request.rebalance, *request.load, priced.model, priced.strategy,
                               priced.cluster, request.seed, request.num_samples);
}

void keep_slowest(SimulatedSteps& simulated, graph::Timeline timeline) {
  const double seconds = timeline.seconds();
  std::vector<double>& all = simulated.sampled.seconds;
  simulated.sampled.peak_bytes.push_back(
      static_cast<double>(*std::ranges::max_element(timeline.peak_bytes)));
  if (all.empty() || seconds > *std::ranges::max_element(all))
    simulated.timeline = std::move(timeline);
  all.push_back(seconds);
}

// Simulates every sample; `write(sample)` gives its prices.
template <class F>
void simulate_samples(const SimulationRequest& request, SimulatedSteps& simulated, F write) {
  for (int64_t sample = 0; sample < request.num_samples; ++sample) {
    cost::Prices prices = write(sample);
    sim::Disturbance disturbance = request.disturbance;
    disturbance.seed = request.seed + static_cast<uint64_t>(sample);
    const bool single = request.num_samples == 1;
    if (!single && disturbance.jitter_sigma == 0) {
      disturbance.jitter_sigma = simulated.scatter.task;
      disturbance.rank_sigma = simulated.scatter.rank;
    }
    sim::disturb(simulated.step, disturbance, prices);
    keep_slowest(simulated, sim::simulate_scattered(simulated.step, prices,
                                                    single ? simulated.scatter : cost::Scatter{},
                                                    request.keep_memory));
  }
}

void add_gain(const Priced& priced, const SimulationRequest& request,
              const std::vector<sim::RebalancedStep>& steps, SimulatedSteps& simulated) {
  if (!request.rebalance.is_on()) return;
  std::vector<double> seconds = simulated.sampled.seconds;
  simulated.rebalancing =
      sim::gain_of(steps, seconds, priced.model, priced.strategy, priced.cluster);
}

void add_shares(SimulatedSteps& simulated) {
  for (int64_t rank = 0; rank < simulated.step.graph.num_ranks(); ++rank)
    if (simulated.step.graph.takes_part(Rank(rank)))
      simulated.ranks.push_back(share_of(simulated, Rank(rank)));
}

SimulatedSteps simulate_exact(const Priced& priced, const SimulationRequest& request) {
  SimulatedSteps simulated;
  simulated.is_exact = true;
  const strategy::Strategy& s = priced.strategy;
  const bool is_uneven = request.load || (request.imbalance > 1 && s.mesh.ep > 1);
  const std::string why_not = is_uneven                 ? "the load is not balanced"
                              : !request.scatter.none() ? "equal tasks do not take equally long"
                                                        : sim::why_not_symmetric(s, priced.cluster);
  if (request.load) simulated.sampled.load_note = cost::stretch_of(*request.load, priced.model);
  const std::vector<Rank> ranks = ranks_to_simulate(
      priced, request, why_not, strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)),
      simulated);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  check_size(priced, schedule::num_tasks(priced.model, s, num_ranks), num_ranks);
  simulated.step = schedule::write_step(priced.model, s, ranks);
  simulated.scatter = request.scatter;
  const std::vector<sim::RebalancedStep> steps = steps_of(priced, request);
  simulate_samples(request, simulated, [&](int64_t sample) {
    if (!steps.empty())
      return cost::price(simulated.step, priced.model, s, priced.cluster,
                         steps[static_cast<size_t>(sample)].load);
    return cost::price(simulated.step, priced.model, s, priced.cluster,
                       is_uneven ? cost::busy_rank_load(priced.model, s.mesh.ep, request.imbalance)
                                 : cost::ExpertLoad());
  });
  add_gain(priced, request, steps, simulated);
  add_shares(simulated);
  return simulated;
}

SimulatedSteps simulate_of_trainer(const Priced& priced, const SimulationRequest& request,
                                   const cost::TrainerProfile& trainer) {
  SimulatedSteps simulated;
  const strategy::Strategy& s = priced.strategy;
  cost::TrainerEstimator estimator(priced.model, priced.cluster, trainer, s.precision, s.sequence);
  cost::require_priced(s, trainer, priced.cluster);
  const std::vector<Rank> ranks = ranks_to_simulate(
      priced, request, sim::why_not_symmetric_whole(s, priced.cluster),
      strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)), simulated);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  if (request.load) simulated.sampled.load_note = cost::stretch_of(*request.load, priced.model);
  check_size(priced, schedule::num_tasks(priced.model, s, num_ranks, cost::style_of(trainer)),
             num_ranks);
  const std::vector<sim::RebalancedStep> steps = steps_of(priced, request);
  simulate_samples(request, simulated, [&](int64_t sample) {
    double imbalance = request.imbalance;
    if (!steps.empty())
      imbalance = cost::imbalance_of(steps[static_cast<size_t>(sample)].load, s.mesh.ep);
    cost::PricedStep whole = cost::write_priced_step(estimator, s, ranks, imbalance);
    simulated.step = std::move(whole.step);
    return std::move(whole.prices);
  });
  simulated.closed_form_seconds = estimator.estimate(s, request.imbalance).seconds;
  add_gain(priced, request, steps, simulated);
  add_shares(simulated);
  return simulated;
}

}  // namespace

SimulatedSteps simulate(const Priced& priced, const SimulationRequest& request,
                        const cost::TrainerProfile& trainer) {
  const bool exact = cost::has_exact_costs(priced.cluster, trainer) &&
                     strategy::not_runnable(priced.strategy).empty();
  SimulatedSteps simulated =
      exact ? simulate_exact(priced, request) : simulate_of_trainer(priced, request, trainer);
  simulated.trainer = trainer;
  return simulated;
}

}  // namespace piper::cli
