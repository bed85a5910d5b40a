// piper bench sim: how fast the simulator is: a whole step of DeepSeek-V3 on 2,048 ranks by
// default, every rank of it, and the one pipeline that stands for all where that is provable.
#include <bench/benches.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/prices.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>
#include <piper/sim/simulate.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>

#include <chrono>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

struct SimFlags {
  StrategyFlags strategy;
  bool json = false;
};

struct Timing {
  double write_seconds = 0, price_seconds = 0, simulate_seconds = 0, step_seconds = 0;
  size_t num_tasks = 0;
  double total() const { return write_seconds + price_seconds + simulate_seconds; }
  double tasks_per_second() const { return static_cast<double>(num_tasks) / simulate_seconds; }
};

Timing time(const Priced& priced, const std::vector<Rank>& ranks) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  Timing timing;
  auto start = Clock::now();
  const schedule::StepGraph step = schedule::write_step(priced.model, priced.strategy, ranks);
  timing.write_seconds = seconds(start);
  start = Clock::now();
  const cost::Prices prices = cost::price(step, priced.model, priced.strategy, priced.cluster);
  timing.price_seconds = seconds(start);
  start = Clock::now();
  timing.step_seconds = sim::simulate(step, prices, false).seconds();
  timing.simulate_seconds = seconds(start);
  timing.num_tasks = step.graph.tasks().size();
  return timing;
}

Json to_json(const Timing& t) {
  return {{"num_tasks", t.num_tasks},         {"write_seconds", t.write_seconds},
          {"price_seconds", t.price_seconds}, {"simulate_seconds", t.simulate_seconds},
          {"total_seconds", t.total()},       {"tasks_per_second", t.tasks_per_second()},
          {"step_seconds", t.step_seconds}};
}

int run_sim(const SimFlags& flags) {
  const Priced priced = priced_from_flags(flags.strategy);
  require_runnable(priced.strategy, priced.model, "bench sim");
  const Timing all = time(priced, {});
  const std::string why_not = sim::why_not_symmetric(priced.strategy, priced.cluster);
  std::optional<Timing> one;
  if (why_not.empty())
    one = time(priced,
               strategy::RankLayout(priced.strategy).group(strategy::Axis::kPipeline, Rank(0)));
  if (flags.json) {
    Json json{{"model", priced.model.name},
              {"cluster", priced.cluster.name},
              {"num_ranks", priced.strategy.mesh.world()},
              {"tasks_per_second", all.tasks_per_second()},
              {"all_ranks", to_json(all)}};
    if (one)
      json["one_pipeline"] = to_json(*one);
    else
      json["not_symmetric"] = why_not;
    say_json(json);
    return 0;
  }
  say("{} on {}: {}\n", priced.model.name, priced.cluster.name, plan::describe(priced.strategy));
  report::Table table;
  using report::Align;
  table.columns = {{"simulated"},
                   {"tasks", Align::kRight},
                   {"write", Align::kRight},
                   {"price", Align::kRight},
                   {"simulate", Align::kRight},
                   {"tasks/s", Align::kRight},
                   {"step", Align::kRight}};
  const auto add = [&](const char* what, const Timing& t) {
    table.rows.push_back({what, format_count(static_cast<double>(t.num_tasks)),
                          format_seconds(t.write_seconds), format_seconds(t.price_seconds),
                          format_seconds(t.simulate_seconds), format_count(t.tasks_per_second()),
                          format_seconds(t.step_seconds)});
  };
  add("every rank", all);
  if (one) add("one pipeline", *one);
  say("{}", Lines{report::to_text(table)});
  if (!one) say("one pipeline does not stand for all: {}\n", why_not);
  return 0;
}

}  // namespace

Run add_bench_sim(Subcommand command) {
  auto flags = std::make_shared<SimFlags>();
  StrategyFlags& s = flags->strategy;
  s.model = "deepseek-v3";
  s.cluster = "dgx-h100";
  add_strategy_flags(command, s);
  command.declared("--model").required(false);
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] {
    StrategyFlags& given = flags->strategy;
    if (given.strategy.empty() && !given.pp && !given.ep && !given.dp) {
      given.pp = 16;
      given.ep = 64;
      given.dp = 128;
    }
    return run_sim(*flags);
  };
}

}  // namespace piper::cli
