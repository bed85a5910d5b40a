// piper sim: plays one step in virtual time; prints where the time and the memory go; writes the trace.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/validators.h>
#include <piper/cost/mfu.h>
#include <piper/cost/prices.h>
#include <piper/cost/step_time.h>
#include <piper/plan/search.h>
#include <piper/report/chrome_trace.h>
#include <piper/report/table.h>
#include <piper/sim/play.h>
#include <piper/strategy/mesh.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

using graph::Stream;
using report::Align;

constexpr int64_t kMostRanksPlayed = 64;

struct Flags {
  StrategyFlags strategy;
  std::string trace;
  bool json = false;
};

// Where a rank's step goes.
struct RankShare {
  Rank rank;
  double compute_seconds = 0;
  double exposed_seconds = 0;  // an exchange or a reduction runs and nothing is computed
  double idle_seconds = 0;     // the rest
  int64_t peak_bytes = 0;
};

struct Played {
  schedule::StepGraph step;
  graph::Timeline timeline;
  std::vector<RankShare> ranks;
  bool one_pipeline = false;
};

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

std::vector<graph::Interval> intervals(const Played& played, Rank rank, Stream stream) {
  std::vector<graph::Interval> list;
  for (const graph::TaskId id : played.step.graph.stream(rank, stream))
    list.push_back(played.timeline.tasks[id.index()]);
  std::ranges::sort(list, {}, &graph::Interval::start_seconds);
  return list;
}

RankShare share_of(const Played& played, Rank rank) {
  RankShare share{.rank = rank, .peak_bytes = played.timeline.peak_bytes[rank.index()]};
  const std::vector<graph::Interval> compute = intervals(played, rank, Stream::kCompute);
  for (const graph::Interval& interval : compute)
    share.compute_seconds += interval.end_seconds - interval.start_seconds;
  share.exposed_seconds = uncovered(intervals(played, rank, Stream::kExchange), compute);
  share.idle_seconds =
      std::max(0.0, played.timeline.seconds() - share.compute_seconds - share.exposed_seconds);
  return share;
}

Played play(const Priced& priced) {
  Played played;
  std::vector<Rank> ranks;
  if (priced.strategy.mesh.world() > kMostRanksPlayed)
    ranks = plan::simulated_ranks(priced.cluster, priced.strategy);
  played.one_pipeline = !ranks.empty();
  // A task takes about half a kilobyte while it is played.
  constexpr double kMostTasks = 30e6;
  const strategy::Strategy& s = priced.strategy;
  const double tasks = static_cast<double>(ranks.empty() ? s.mesh.world() : std::ssize(ranks)) *
                       static_cast<double>(s.num_micro_batches) * 20 *
                       static_cast<double>(priced.model.num_layers()) /
                       static_cast<double>(s.mesh.pp);
  if (tasks > kMostTasks)
    throw InvalidInput(
        fmt::format("num_micro_batches is {}: about {} tasks to play; allowed: up to {} (`piper "
                    "estimate` prices "
                    "any number)",
                    s.num_micro_batches, format_count(tasks), format_count(kMostTasks)));
  played.step = schedule::write_step(priced.model, priced.strategy, ranks);
  played.timeline = sim::play(
      played.step, cost::price(played.step, priced.model, priced.strategy, priced.cluster));
  if (ranks.empty())
    for (int64_t rank = 0; rank < priced.strategy.mesh.world(); ++rank) ranks.push_back(Rank(rank));
  for (const Rank rank : ranks) played.ranks.push_back(share_of(played, rank));
  return played;
}

struct Summary {
  double step_seconds = 0, closed_form_seconds = 0, mfu = 0, compute = 0, exposed = 0,
         idle = 0;  // shares: mean over ranks
  int64_t peak_bytes = 0;
};

Summary summarise(const Priced& priced, const Played& played) {
  const strategy::Strategy& s = priced.strategy;
  Summary summary{.step_seconds = played.timeline.seconds()};
  summary.closed_form_seconds =
      cost::Estimator(priced.model, priced.cluster, s.precision, s.sequence).estimate(s).seconds;
  summary.mfu = cost::step_flops(priced.model, s.sequence, s.global_batch_sequences,
                                 cost::kept_part(priced.model, s)) /
                (summary.step_seconds *
                 cost::peak_flops_per_second(priced.cluster, s.precision, s.mesh.world()));
  for (const RankShare& rank : played.ranks) {
    const double whole = summary.step_seconds * static_cast<double>(played.ranks.size());
    summary.compute += rank.compute_seconds / whole;
    summary.exposed += rank.exposed_seconds / whole;
    summary.idle += rank.idle_seconds / whole;
    summary.peak_bytes = std::max(summary.peak_bytes, rank.peak_bytes);
  }
  return summary;
}

Json to_json(const Priced& priced, const Played& played, const Summary& summary) {
  strategy::Strategy strategy = priced.strategy;
  strategy.predicted = Json();
  Json ranks = Json::array();
  for (const RankShare& rank : played.ranks)
    ranks.push_back({{"rank", rank.rank.value},
                     {"compute_seconds", rank.compute_seconds},
                     {"exposed_communication_seconds", rank.exposed_seconds},
                     {"idle_seconds", rank.idle_seconds},
                     {"peak_bytes", rank.peak_bytes}});
  return {{"model", priced.model.name},
          {"cluster", priced.cluster.name},
          {"strategy", strategy::to_json(strategy)},
          {"step_seconds", summary.step_seconds},
          {"closed_form_seconds", summary.closed_form_seconds},
          {"mfu", summary.mfu},
          {"mfu_formula", cost::kMfuFormula},
          {"compute_fraction", summary.compute},
          {"exposed_communication_fraction", summary.exposed},
          {"bubble_fraction", summary.idle},
          {"peak_bytes", summary.peak_bytes},
          {"num_tasks", played.step.graph.tasks().size()},
          {"one_pipeline", played.one_pipeline},
          {"ranks", ranks}};
}

void print_text(const Priced& priced, const Played& played, const Summary& summary) {
  fmt::print("{} on {}: {}\n", priced.model.name, priced.cluster.name, describe(priced.strategy));
  if (played.one_pipeline)
    fmt::print(
        "one pipeline of {} played (dp index 0): the load is balanced and no device is shared, so "
        "the others do the same\n",
        priced.strategy.mesh.dp);
  fmt::print("step {} ({} tasks; closed form {}), MFU {}\n", format_seconds(summary.step_seconds),
             played.step.graph.tasks().size(), format_seconds(summary.closed_form_seconds),
             format_percent(summary.mfu));
  fmt::print("mean over ranks: compute {}, exposed communication {}, bubble {}\n\n",
             format_percent(summary.compute), format_percent(summary.exposed),
             format_percent(summary.idle));
  report::Table table;
  table.columns = {{"rank", Align::kRight},    {"stage", Align::kRight},
                   {"compute", Align::kRight}, {"exposed", Align::kRight},
                   {"bubble", Align::kRight},  {"peak memory", Align::kRight}};
  for (const RankShare& rank : played.ranks)
    table.rows.push_back({std::to_string(rank.rank.value),
                          std::to_string(strategy::coordinates(priced.strategy.mesh, rank.rank).pp),
                          format_seconds(rank.compute_seconds),
                          format_seconds(rank.exposed_seconds), format_seconds(rank.idle_seconds),
                          format_bytes(static_cast<double>(rank.peak_bytes))});
  fmt::print("{}", report::to_text(table));
}

int run(const Flags& flags) {
  const Priced priced = priced_from_flags(flags.strategy);
  const Played played = play(priced);
  const Summary summary = summarise(priced, played);
  if (!flags.trace.empty()) {
    report::TraceDescription description{.title = "predicted"};
    for (int64_t rank = 0; rank < priced.strategy.mesh.world(); ++rank)
      description.stage_of_rank.push_back(
          strategy::coordinates(priced.strategy.mesh, Rank(rank)).pp);
    report::write_chrome_trace_file(flags.trace, played.step, played.timeline, description);
  }
  if (flags.json) {
    std::cout << to_json(priced, played, summary).dump(2) << "\n";
    return 0;
  }
  print_text(priced, played, summary);
  if (!flags.trace.empty()) fmt::print("\nwritten: {} (open it in ui.perfetto.dev)\n", flags.trace);
  return 0;
}

}  // namespace

Run add_sim(CLI::App& command) {
  auto flags = std::make_shared<Flags>();
  add_strategy_flags(command, flags->strategy);
  command.add_option("--trace", flags->trace, "write the timeline as a Chrome trace")
      ->check(writable_file());
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
