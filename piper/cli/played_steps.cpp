#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/played_steps.h>
#include <piper/cost/prices.h>
#include <piper/sim/play.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/mesh.h>

#include <algorithm>

namespace piper::cli {
namespace {

using graph::Stream;

constexpr int64_t kMostRanksPlayed = 64;

// Length of the union of the intervals of `communication` less what `compute` covers; both sorted by start.
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

std::vector<graph::Interval> intervals(const PlayedSteps& played, Rank rank, Stream stream) {
  std::vector<graph::Interval> list;
  for (const graph::TaskId id : played.step.graph.stream(rank, stream))
    list.push_back(played.timeline.tasks[id.index()]);
  std::ranges::sort(list, {}, &graph::Interval::start_seconds);
  return list;
}

RankShare share_of(const PlayedSteps& played, Rank rank) {
  RankShare share{.rank = rank, .peak_bytes = played.timeline.peak_bytes[rank.index()]};
  const std::vector<graph::Interval> compute = intervals(played, rank, Stream::kCompute);
  for (const graph::Interval& interval : compute)
    share.compute_seconds += interval.end_seconds - interval.start_seconds;
  share.exposed_seconds = uncovered(intervals(played, rank, Stream::kExchange), compute);
  share.idle_seconds =
      std::max(0.0, played.timeline.seconds() - share.compute_seconds - share.exposed_seconds);
  return share;
}

// A task takes about half a kilobyte while it is played.
void check_size(const Priced& priced, int64_t num_ranks) {
  constexpr double kMostTasks = 30e6;
  const strategy::Strategy& s = priced.strategy;
  const double tasks = static_cast<double>(num_ranks) * static_cast<double>(s.num_micro_batches) *
                       20 * static_cast<double>(priced.model.num_layers()) /
                       static_cast<double>(s.mesh.pp);
  if (tasks > kMostTasks)
    throw InvalidInput(fmt::format(
        "num_micro_batches is {}: about {} tasks to play on {} ranks; allowed: up to {} "
        "(`piper estimate` prices any number)",
        s.num_micro_batches, format_count(tasks), num_ranks, format_count(kMostTasks)));
}

std::vector<Rank> ranks_to_play(const Priced& priced, const PlayRequest& request,
                                PlayedSteps& played) {
  const strategy::Mesh& mesh = priced.strategy.mesh;
  if (mesh.world() <= kMostRanksPlayed) return {};
  played.why_all = request.load ? "the load is not balanced"
                   : !request.disturbance.none()
                       ? "ranks are not equally fast"
                       : sim::why_not_symmetric(priced.strategy, priced.cluster);
  played.one_pipeline = played.why_all.empty();
  if (!played.one_pipeline) return {};
  return strategy::pipeline_group(mesh, Rank(0));
}

cost::Prices prices_of(const Priced& priced, const PlayRequest& request,
                       const schedule::StepGraph& step, int64_t sample) {
  cost::ExpertLoad load;
  if (request.load)
    load = cost::sample_load(*request.load, priced.model, priced.strategy.mesh.ep, request.seed,
                             sample, request.num_samples);
  cost::Prices prices = cost::price(step, priced.model, priced.strategy, priced.cluster, load);
  sim::Disturbance disturbance = request.disturbance;
  disturbance.seed = request.seed + static_cast<uint64_t>(sample);
  sim::disturb(step, disturbance, prices);
  return prices;
}

}  // namespace

PlayedSteps play_steps(const Priced& priced, const PlayRequest& request) {
  PlayedSteps played;
  std::vector<Rank> ranks = ranks_to_play(priced, request, played);
  const int64_t world = priced.strategy.mesh.world();
  check_size(priced, ranks.empty() ? world : std::ssize(ranks));
  played.step = schedule::write_step(priced.model, priced.strategy, ranks);
  for (int64_t sample = 0; sample < request.num_samples; ++sample) {
    graph::Timeline timeline = sim::play(
        played.step, prices_of(priced, request, played.step, sample), request.keep_memory);
    const double seconds = timeline.seconds();
    played.sampled.peak_bytes.push_back(
        static_cast<double>(*std::ranges::max_element(timeline.peak_bytes)));
    if (sample == 0 || seconds > *std::ranges::max_element(played.sampled.seconds))
      played.timeline = std::move(timeline);
    played.sampled.seconds.push_back(seconds);
  }
  if (ranks.empty())
    for (int64_t rank = 0; rank < world; ++rank) ranks.push_back(Rank(rank));
  for (const Rank rank : ranks) played.ranks.push_back(share_of(played, rank));
  return played;
}

}  // namespace piper::cli
