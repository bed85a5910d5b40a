// piper sim: simulates one step in virtual time; prints where the time and the memory go; writes
// the trace.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/fits.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/prediction_table.h>
#include <piper/cli/simulated_steps.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/mfu.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/files/output.h>
#include <piper/plan/search.h>
#include <piper/report/chrome_trace.h>
#include <piper/report/report.h>
#include <piper/report/table.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace piper::cli {
namespace {

using report::Align;

constexpr size_t kMostRanksDrawn = 16;

struct SimFlags {
  StrategyFlags strategy;
  LoadFlags load;
  std::vector<std::string> stragglers;
  std::optional<double> jitter;
  std::string trace, html, trainer, rebalance = "off";
  int64_t rebalance_every = 50;
  bool json = false, all_ranks = false;
};

// "3:1.5": rank 3 takes 1.5 times as long.
sim::Straggler parse_straggler(const std::string& text, int64_t world) {
  const auto refuse = [&] {
    throw InvalidInput(
        fmt::format("--straggler is '{}'; allowed: RANK:FACTOR, a rank from 0 to {} and a factor "
                    "from 0.001 to 1000",
                    text, world - 1));
  };
  int64_t rank = -1;
  double factor = 0;
  const char* end = text.data() + text.size();
  const auto [colon, bad_rank] = std::from_chars(text.data(), end, rank);
  if (bad_rank != std::errc() || colon == end || *colon != ':' || rank < 0 || rank >= world)
    refuse();
  const auto [last, bad_factor] = std::from_chars(colon + 1, end, factor);
  if (bad_factor != std::errc() || last != end || !(factor >= 0.001 && factor <= 1000)) refuse();
  return {Rank(rank), factor};
}

// What --jitter says goes before what was measured. Where --load is given its samples are
// simulated; else one step under the strategy's own load.
SimulationRequest request_of(const SimFlags& flags, const Priced& priced,
                             const cost::LoadDistribution& load) {
  const strategy::Strategy& strategy = priced.strategy;
  const cost::Scatter scatter = cost::scatter(priced.cluster);
  SimulationRequest request{.load = load_of(flags.load),
                            .imbalance = imbalance_of(load, strategy, priced.model),
                            .seed = flags.load.seed,
                            .keep_memory = !flags.trace.empty() || !flags.html.empty(),
                            .all_ranks = flags.all_ranks};
  for (const std::string& text : flags.stragglers)
    request.disturbance.stragglers.push_back(parse_straggler(text, strategy.mesh.world()));
  request.disturbance.jitter_sigma = flags.jitter.value_or(0);
  if (!flags.jitter) request.scatter = scatter;
  if (request.load || flags.jitter > 0) request.num_samples = flags.load.num_samples;
  request.rebalance = rebalance_of_samples(flags.rebalance, flags.rebalance_every, flags.load);
  return request;
}

// What rebalancing is worth over the samples, beside the same steps without it.
void compare_with_still(const Priced& priced, SimulationRequest request,
                        const cost::TrainerProfile& trainer, cost::RebalancingGain& gain) {
  request.rebalance = {};
  request.keep_memory = false;
  gain.seconds_without = cost::spread_of(simulate(priced, request, trainer).sampled.seconds);
  gain.pays = gain.seconds.mean < gain.seconds_without.mean;
}

struct Summary {
  double step_seconds = 0;
  std::optional<double> closed_form_seconds;
  double mfu = 0, compute = 0, exposed = 0, idle = 0;  // shares: mean over ranks
  int64_t peak_bytes = 0, fullest_stage = 0;
};

Summary summarise(const Priced& priced, const SimulatedSteps& simulated, double imbalance) {
  const strategy::Strategy& s = priced.strategy;
  Summary summary{.step_seconds = simulated.timeline.seconds()};
  summary.closed_form_seconds = simulated.closed_form_seconds;
  if (strategy::not_runnable(s).empty() && !summary.closed_form_seconds)
    summary.closed_form_seconds =
        cost::ExecutorEstimator(priced.model, priced.cluster, s.precision, s.sequence)
            .estimate(s, imbalance)
            .seconds;
  summary.mfu = cost::mfu(priced.model, s, priced.cluster, summary.step_seconds);
  const strategy::RankLayout layout(s);
  for (const RankShare& rank : simulated.ranks) {
    const double whole = summary.step_seconds * static_cast<double>(simulated.ranks.size());
    summary.compute += rank.compute_seconds / whole;
    summary.exposed += rank.exposed_seconds / whole;
    summary.idle += rank.idle_seconds / whole;
    if (rank.peak_bytes <= summary.peak_bytes) continue;
    summary.peak_bytes = rank.peak_bytes;
    summary.fullest_stage = layout.stage(rank.rank);
  }
  return summary;
}

Fit fit_of(const Priced& priced, const Summary& summary) {
  return memory_fit(priced.cluster, static_cast<double>(summary.peak_bytes), summary.fullest_stage);
}

Json answer_json(const SimFlags& flags, const Priced& priced, const SimulationRequest& request,
                 const cost::LoadDistribution& load, const SimulatedSteps& simulated,
                 const Summary& summary) {
  strategy::Strategy strategy = priced.strategy;
  strategy.predicted = nullptr;
  Json ranks = Json::array();
  for (const RankShare& rank : simulated.ranks)
    ranks.push_back({{"rank", rank.rank.value},
                     {"compute_seconds", rank.compute_seconds},
                     {"exposed_communication_seconds", rank.exposed_seconds},
                     {"idle_seconds", rank.idle_seconds},
                     {"peak_bytes", rank.peak_bytes}});
  Json json{{"model", priced.model.name},
            {"cluster", priced.cluster.name},
            {"strategy", strategy::to_json(strategy)},
            {"step_seconds", summary.step_seconds},
            {"closed_form_seconds",
             summary.closed_form_seconds ? Json(*summary.closed_form_seconds) : Json()},
            {"mfu", summary.mfu},
            {"mfu_formula", cost::kMfuFormula},
            {"compute_fraction", summary.compute},
            {"exposed_communication_fraction", summary.exposed},
            {"bubble_fraction", summary.idle},
            {"peak_bytes", summary.peak_bytes},
            {"num_tasks", simulated.step.graph.tasks().size()},
            {"one_pipeline", simulated.one_pipeline},
            {"ranks", ranks}};
  add_to(json, fit_of(priced, summary));
  if (priced.model.num_moe_layers() > 0) json["load"] = load.text;
  json["trainer"] = simulated.trainer.name;
  if (simulated.sampled.seconds.size() > 1) {
    json["sampled"] = to_json(flags.load, simulated.sampled);
    json["sampled"]["jitter"] = flags.jitter.value_or(0);
  }
  if (simulated.rebalancing)
    json["rebalance"] = rebalancing_json(request.rebalance, *simulated.rebalancing);
  if (simulated.scatter.task > 0) json["task_scatter"] = simulated.scatter.task;
  if (simulated.scatter.rank > 0) json["rank_scatter"] = simulated.scatter.rank;
  return json;
}

// "0 to 3, 8, 12 to 15": ascending ranks.
std::string ranks_in_words(const std::vector<int64_t>& ranks) {
  std::string words;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!words.empty()) words += ", ";
    words += std::to_string(ranks[i]);
    if (end - i > 1) words += fmt::format("{}{}", end - i > 2 ? " to " : ", ", ranks[end - 1]);
    i = end;
  }
  return words;
}

// Ranks whose figures read alike share a row.
report::Table rank_table(const SimulatedSteps& simulated, const strategy::RankLayout& layout) {
  report::Table table;
  table.columns = {{"ranks"},
                   {"stage", Align::kRight},
                   {"compute", Align::kRight},
                   {"exposed", Align::kRight},
                   {"bubble", Align::kRight},
                   {"peak memory", Align::kRight}};
  std::vector<std::vector<int64_t>> ranks;
  for (const RankShare& rank : simulated.ranks) {
    const std::vector<std::string> figures{
        std::to_string(layout.stage(rank.rank)), format_seconds(rank.compute_seconds),
        format_seconds(rank.exposed_seconds), format_seconds(rank.idle_seconds),
        format_bytes(static_cast<double>(rank.peak_bytes))};
    size_t row = 0;
    while (row < table.rows.size() &&
           !std::equal(figures.begin(), figures.end(), table.rows[row].begin() + 1))
      ++row;
    if (row == table.rows.size()) {
      table.rows.push_back({""});
      table.rows.back().insert(table.rows.back().end(), figures.begin(), figures.end());
      ranks.emplace_back();
    }
    ranks[row].push_back(rank.rank.value);
  }
  for (size_t row = 0; row < ranks.size(); ++row) table.rows[row][0] = ranks_in_words(ranks[row]);
  table.max_width = report::console_width();
  return table;
}

void print_text(const SimFlags& flags, const Priced& priced, const SimulationRequest& request,
                const cost::LoadDistribution& load, const SimulatedSteps& simulated,
                const Summary& summary) {
  say("{} on {}: {}\n", priced.model.name, priced.cluster.name, plan::describe(priced.strategy));
  say("{}\n", run_by(simulated.trainer, simulated.is_exact));
  if (const std::string words = in_words(load, priced.strategy, priced.model); !words.empty())
    say("{}\n", words);
  if (simulated.one_pipeline)
    say("one pipeline of {} simulated (the first of each stage): ranks of a stage are alike and no "
        "device is shared, so the others do the same\n",
        priced.strategy.mesh.ranks_per_stage());
  if (!simulated.why_all.empty()) say("all ranks simulated: {}\n", simulated.why_all);
  if (simulated.sampled.seconds.size() > 1) {
    std::string what = flags.load.load.empty() ? "" : "load " + flags.load.load + ", ";
    if (flags.jitter > 0) what += fmt::format("jitter {}, ", *flags.jitter);
    say("\n{}\nthe slowest sample:\n",
        Lines{to_text(fmt::format("{}{} samples", what, simulated.sampled.seconds.size()),
                      simulated.sampled)});
  }
  if (simulated.rebalancing)
    say("{}\n", rebalancing_text(request.rebalance, *simulated.rebalancing,
                                 std::ssize(simulated.sampled.seconds)));
  if (!simulated.scatter.none())
    say("equal tasks take times that scatter by {:.2f} on this machine, whole ranks by {:.2f} "
        "(measured): {}; --jitter 0 leaves it out\n",
        simulated.scatter.task, simulated.scatter.rank,
        simulated.sampled.seconds.size() > 1 ? "drawn anew in every sample"
                                             : "the step of median length of seven draws");
  const std::string closed =
      summary.closed_form_seconds
          ? fmt::format("; closed form {}", format_seconds(*summary.closed_form_seconds))
          : "";
  say("step {} ({} tasks{}), MFU {}\n", format_seconds(summary.step_seconds),
      simulated.step.graph.tasks().size(), closed, format_percent(summary.mfu));
  say("mean over ranks: compute {}, exposed communication {}, bubble {}\n\n",
      format_percent(summary.compute), format_percent(summary.exposed),
      format_percent(summary.idle));
  if (const std::string lacks = to_text(fit_of(priced, summary)); !lacks.empty())
    say("{}\n", lacks);
  const strategy::RankLayout layout(priced.strategy);
  say("{}", Lines{report::to_text(rank_table(simulated, layout))});
}

// The page of `piper report` with what a simulation knows.
void write_html(const SimFlags& flags, const Priced& priced, const SimulatedSteps& simulated,
                const Summary& summary, const std::vector<int64_t>& stage_of_rank) {
  report::Report page;
  page.header = {.model = priced.model.name,
                 .cluster = priced.cluster.name,
                 .strategy = plan::describe(priced.strategy),
                 .facts = {{"ranks simulated", std::to_string(simulated.ranks.size())}}};
  if (simulated.is_exact) {
    page.trained = priced.strategy;
    page.machine = priced.cluster;
  }
  page.predicted =
      report::make_gantt(simulated.step, simulated.timeline, stage_of_rank, kMostRanksDrawn);
  page.comparison.emplace();
  page.comparison->predicted_step_seconds = summary.step_seconds;
  page.comparison->predicted_mfu = summary.mfu;
  files::write_text_file(flags.html, report::render(page));
}

int run_sim(const SimFlags& flags) {
  const Priced priced = priced_from_flags(flags.strategy);
  const cost::TrainerProfile trainer = trainer_of(flags.trainer, priced.strategy, priced.cluster);
  const cost::LoadDistribution load = load_of(flags.load.load, priced.strategy);
  const SimulationRequest request = request_of(flags, priced, load);
  SimulatedSteps simulated = simulate(priced, request, trainer);
  if (simulated.rebalancing) compare_with_still(priced, request, trainer, *simulated.rebalancing);
  const Summary summary = summarise(priced, simulated, request.imbalance);
  std::vector<int64_t> stage_of_rank;
  const strategy::RankLayout layout(priced.strategy);
  for (int64_t rank = 0; rank < priced.strategy.mesh.world(); ++rank)
    stage_of_rank.push_back(layout.stage(Rank(rank)));
  if (!flags.trace.empty())
    report::write_chrome_trace_file(flags.trace, simulated.step, simulated.timeline,
                                    {.title = "predicted", .stage_of_rank = stage_of_rank});
  if (!flags.html.empty()) write_html(flags, priced, simulated, summary, stage_of_rank);
  if (flags.json) {
    say_json(answer_json(flags, priced, request, load, simulated, summary));
    return 0;
  }
  print_text(flags, priced, request, load, simulated, summary);
  if (!flags.trace.empty()) say("\nwritten: {} (open it in ui.perfetto.dev)\n", flags.trace);
  if (!flags.html.empty()) say("\nwritten: {}\n", flags.html);
  return 0;
}

}  // namespace

Run add_sim(Subcommand command) {
  auto flags = std::make_shared<SimFlags>();
  add_strategy_flags(command, flags->strategy);
  add_load_flags(command, flags->load);
  add_rebalance_flags(command, flags->rebalance, flags->rebalance_every,
                      "with --load, whose samples are then the steps of one run: ");
  command
      .add_option("--straggler", flags->stragglers,
                  "a rank whose compute takes so many times as long; may be repeated")
      .type_name("RANK:FACTOR");
  command
      .add_option("--jitter", flags->jitter,
                  "scatter of compute times: standard deviation of their logarithm (what `piper "
                  "profile` measured; 0 where it did not)")
      .check(number_in(0, 2));
  command.add_output("--trace", flags->trace, "write the timeline as a Chrome trace");
  command.add_output("--html", flags->html, "write the timeline as a page");
  add_trainer_flag(command, flags->trainer, kAsItsFile);
  command.add_flag("--all-ranks", flags->all_ranks,
                   "simulate every rank, also where one pipeline stands for all");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_sim(*flags); };
}

}  // namespace piper::cli
