#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/played_steps.h>
#include <piper/cost/estimator.h>
#include <piper/cost/prices.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/play.h>
#include <piper/sim/rebalanced_load.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::cli {
namespace {

using graph::Stream;

constexpr int64_t kMostRanksPlayed = 64;

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
std::vector<graph::Interval> intervals(const PlayedSteps& played, Rank rank, Stream stream) {
  std::vector<graph::Interval> list;
  for (const graph::TaskId id : played.step.graph.stream(rank, stream)) {
    const graph::Task& task = played.step.graph.task(id);
    if (!task.segment.valid() || played.step.segment(task).kind != schedule::SegmentKind::kWait)
      list.push_back(played.timeline.tasks[id.index()]);
  }
  std::ranges::sort(list, {}, &graph::Interval::start_seconds);
  return list;
}

RankShare share_of(const PlayedSteps& played, Rank rank) {
  RankShare share{.rank = rank, .peak_bytes = played.timeline.peak_bytes[rank.index()]};
  const std::vector<graph::Interval> compute = intervals(played, rank, Stream::kCompute);
  for (const graph::Interval& interval : compute)
    share.compute_seconds += interval.end_seconds - interval.start_seconds;
  std::vector<graph::Interval> moving = intervals(played, rank, Stream::kExchange);
  for (const Stream beside : {Stream::kStates, Stream::kHost})
    std::ranges::copy(intervals(played, rank, beside), std::back_inserter(moving));
  std::ranges::sort(moving, {}, &graph::Interval::start_seconds);
  share.exposed_seconds = uncovered(moving, compute);
  share.idle_seconds =
      std::max(0.0, played.timeline.seconds() - share.compute_seconds - share.exposed_seconds);
  return share;
}

// A task takes about half a kilobyte while it is played.
void check_size(const Priced& priced, double tasks, int64_t num_ranks) {
  constexpr double kMostTasks = 30e6;
  if (tasks > kMostTasks)
    throw InvalidInput(fmt::format(
        "num_micro_batches is {}: about {} tasks to play on {} ranks; allowed: up to {} "
        "(`piper estimate` prices any number)",
        priced.strategy.num_micro_batches, format_count(tasks), num_ranks,
        format_count(kMostTasks)));
}

// Empty: all. `why_not`: one pipeline does not stand for all.
std::vector<Rank> ranks_to_play(const Priced& priced, const PlayRequest& request,
                                const std::string& why_not, std::vector<Rank> pipeline,
                                PlayedSteps& played) {
  if (priced.strategy.mesh.world() <= kMostRanksPlayed) return {};
  played.why_all = request.all_ranks             ? "as asked for"
                   : !request.disturbance.none() ? "ranks are not equally fast"
                                                 : why_not;
  played.one_pipeline = played.why_all.empty();
  if (!played.one_pipeline) return {};
  return pipeline;
}

// The steps of the run that the samples are; none without a load. With a policy, experts move
// between them.
std::vector<sim::RebalancedStep> steps_of(const Priced& priced, const PlayRequest& request) {
  if (!request.load) return {};
  if (const std::string line =
          balance::contradiction(request.rebalance, priced.strategy.redundant_experts);
      !line.empty())
    throw InvalidInput(line);
  return sim::rebalanced_steps(request.rebalance, *request.load, priced.model, priced.strategy,
                               priced.cluster, request.seed, request.num_samples);
}

void keep_slowest(PlayedSteps& played, graph::Timeline timeline) {
  const double seconds = timeline.seconds();
  std::vector<double>& all = played.sampled.seconds;
  played.sampled.peak_bytes.push_back(
      static_cast<double>(*std::ranges::max_element(timeline.peak_bytes)));
  if (all.empty() || seconds > *std::ranges::max_element(all))
    played.timeline = std::move(timeline);
  all.push_back(seconds);
}

// Plays every sample; `write(sample)` gives its prices.
template <class F>
void play_samples(const PlayRequest& request, PlayedSteps& played, F write) {
  for (int64_t sample = 0; sample < request.num_samples; ++sample) {
    cost::Prices prices = write(sample);
    sim::Disturbance disturbance = request.disturbance;
    disturbance.seed = request.seed + static_cast<uint64_t>(sample);
    const bool single = request.num_samples == 1;
    if (!single && disturbance.jitter_sigma == 0) {
      disturbance.jitter_sigma = played.scatter.task;
      disturbance.rank_sigma = played.scatter.rank;
    }
    sim::disturb(played.step, disturbance, prices);
    keep_slowest(played,
                 sim::play_scattered(played.step, prices, single ? played.scatter : cost::Scatter{},
                                     request.keep_memory));
  }
}

void add_gain(const Priced& priced, const PlayRequest& request,
              const std::vector<sim::RebalancedStep>& steps, PlayedSteps& played) {
  if (!request.rebalance.is_on()) return;
  std::vector<double> seconds = played.sampled.seconds;
  played.rebalancing = sim::gain_of(steps, seconds, priced.model, priced.strategy, priced.cluster);
}

void add_shares(PlayedSteps& played) {
  for (int64_t rank = 0; rank < played.step.graph.num_ranks(); ++rank)
    if (played.step.graph.takes_part(Rank(rank)))
      played.ranks.push_back(share_of(played, Rank(rank)));
}

PlayedSteps play_exact(const Priced& priced, const PlayRequest& request) {
  PlayedSteps played;
  played.is_exact = true;
  const strategy::Strategy& s = priced.strategy;
  const std::string why_not = request.load              ? "the load is not balanced"
                              : !request.scatter.none() ? "equal tasks do not take equally long"
                                                        : sim::why_not_symmetric(s, priced.cluster);
  if (request.load) played.sampled.load_note = cost::stretch_of(*request.load, priced.model);
  const std::vector<Rank> ranks =
      ranks_to_play(priced, request, why_not,
                    strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)), played);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  check_size(priced, schedule::num_tasks(priced.model, s, num_ranks), num_ranks);
  played.step = schedule::write_step(priced.model, s, ranks);
  played.scatter = request.scatter;
  const std::vector<sim::RebalancedStep> steps = steps_of(priced, request);
  play_samples(request, played, [&](int64_t sample) {
    return cost::price(
        played.step, priced.model, s, priced.cluster,
        steps.empty() ? cost::ExpertLoad() : steps[static_cast<size_t>(sample)].load);
  });
  add_gain(priced, request, steps, played);
  add_shares(played);
  return played;
}

PlayedSteps play_of_trainer(const Priced& priced, const PlayRequest& request,
                            const cost::TrainerProfile& trainer) {
  PlayedSteps played;
  const strategy::Strategy& s = priced.strategy;
  cost::TrainerEstimator estimator(priced.model, priced.cluster, trainer, s.precision, s.sequence);
  estimator.require_priced(s);
  const std::vector<Rank> ranks =
      ranks_to_play(priced, request, sim::why_not_symmetric_whole(s, priced.cluster),
                    strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)), played);
  const int64_t num_ranks = ranks.empty() ? s.mesh.world() : std::ssize(ranks);
  if (request.load) played.sampled.load_note = cost::stretch_of(*request.load, priced.model);
  check_size(priced, schedule::num_tasks(priced.model, s, num_ranks, cost::style_of(trainer)),
             num_ranks);
  const std::vector<sim::RebalancedStep> steps = steps_of(priced, request);
  play_samples(request, played, [&](int64_t sample) {
    double imbalance = 1;
    if (!steps.empty())
      imbalance = cost::imbalance_of(steps[static_cast<size_t>(sample)].load, s.mesh.ep);
    cost::PricedStep whole = cost::write_priced_step(estimator, s, ranks, imbalance);
    played.step = std::move(whole.step);
    return std::move(whole.prices);
  });
  played.closed_form_seconds = estimator.estimate(s).seconds;
  add_gain(priced, request, steps, played);
  add_shares(played);
  return played;
}

}  // namespace

PlayedSteps play(const Priced& priced, const PlayRequest& request,
                 const cost::TrainerProfile& trainer) {
  const bool exact = cost::has_exact_costs(priced.cluster, trainer) &&
                     strategy::not_runnable(priced.strategy).empty();
  PlayedSteps played =
      exact ? play_exact(priced, request) : play_of_trainer(priced, request, trainer);
  played.trainer = trainer;
  return played;
}

}  // namespace piper::cli
