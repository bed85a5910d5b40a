// piper bench plan: how many strategies a second the search over every axis prices on one core, and
// on all that may be used.
#include <bench/benches.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cost/mfu.h>
#include <piper/model/import.h>
#include <piper/plan/question.h>
#include <piper/plan/threads.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <chrono>
#include <limits>
#include <memory>

namespace piper::cli {
namespace {

struct PlanCase {
  const char* model;
  const char* cluster;
  int64_t devices;
};
constexpr PlanCase kCases[] = {{"mixtral-8x7b", "dgx-h100", 64},
                               {"deepseek-v3", "dgx-h100", 2048},
                               {"kimi-k2", "dgx-h100", 4096}};

struct Timed {
  plan::Plan plan;
  double seconds = 0;
  // Memory and time of each.
  double rate() const { return static_cast<double>(plan.num_timed) / seconds; }
};

Timed timed(plan::Request request, int64_t num_threads) {
  request.num_threads = num_threads;
  const auto start = std::chrono::steady_clock::now();
  Timed t{.plan = plan::search(request)};
  t.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return t;
}

struct Searched {
  Timed alone, together;  // on one core, on all
};

Searched searched(const plan::Request& request, int64_t num_cores) {
  Searched s{.alone = timed(request, 1)};
  s.together = num_cores == 1 ? s.alone : timed(request, num_cores);
  return s;
}

struct PlanningRow {
  PlanCase question;
  Searched real;   // what does not fit is asked for its memory alone
  Searched roomy;  // devices whose memory has no end: every strategy has memory and time priced
  double best_mfu = 0;
};

PlanningRow measure(const PlanCase& c, int64_t num_cores) {
  const plan::Question question{.model = model::load_model(c.model),
                                .cluster = cluster::load_cluster(c.cluster),
                                .num_devices = c.devices};
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  std::vector<plan::Default> defaults;
  plan::Request request = plan::resolve_defaults(question, trainer, defaults);
  PlanningRow row{.question = c, .real = searched(request, num_cores)};
  if (const plan::Plan& plan = row.real.alone.plan; !plan.ranked.empty())
    row.best_mfu = cost::mfu(*request.model, plan.ranked.front().strategy, *request.cluster,
                             plan.ranked.front().estimate.seconds);
  request.memory_limit_bytes = std::numeric_limits<double>::infinity();
  row.roomy = searched(request, num_cores);
  return row;
}

Json to_json(const PlanningRow& row) {
  const plan::Plan& plan = row.real.alone.plan;
  return {{"model", row.question.model},
          {"cluster", row.question.cluster},
          {"num_devices", row.question.devices},
          {"shapes", plan.num_shapes},
          {"shapes_passed_over", plan.num_passed_over},
          {"memory_priced", plan.num_priced},
          {"time_priced", plan.num_timed},
          {"seconds", row.real.alone.seconds},
          {"seconds_all_cores", row.real.together.seconds},
          {"best_mfu", row.best_mfu},
          {"candidates", row.roomy.alone.plan.num_timed},
          {"candidates_per_second", row.roomy.alone.rate()},
          {"candidates_per_second_all_cores", row.roomy.together.rate()}};
}

int run_plan(bool json) {
  const int64_t num_cores = plan::num_usable_cores();
  const std::string on_all = fmt::format("on {} cores", num_cores);
  report::Table table;
  table.columns = {{"model"},
                   {"devices", report::Align::kRight},
                   {"shapes passed over", report::Align::kRight},
                   {"memory priced", report::Align::kRight},
                   {"and time", report::Align::kRight},
                   {"seconds", report::Align::kRight},
                   {on_all, report::Align::kRight},
                   {"best MFU", report::Align::kRight},
                   {"no limit: priced", report::Align::kRight},
                   {"a second", report::Align::kRight},
                   {on_all, report::Align::kRight}};
  Json cases = Json::array();
  double priced = 0, seconds = 0, seconds_together = 0;
  report::Progress bar({.label = "bench plan", .total = std::ssize(kCases), .unit = "questions"});
  for (const PlanCase& c : kCases) {
    bar.set(std::ssize(cases), c.model);
    const PlanningRow row = measure(c, num_cores);
    const plan::Plan& plan = row.real.alone.plan;
    priced += static_cast<double>(row.roomy.alone.plan.num_timed);
    seconds += row.roomy.alone.seconds;
    seconds_together += row.roomy.together.seconds;
    cases.push_back(to_json(row));
    table.rows.push_back({c.model, std::to_string(c.devices),
                          fmt::format("{} of {}", plan.num_passed_over, plan.num_shapes),
                          std::to_string(plan.num_priced), std::to_string(plan.num_timed),
                          fmt::format("{:.2f}", row.real.alone.seconds),
                          fmt::format("{:.2f}", row.real.together.seconds),
                          format_percent(row.best_mfu),
                          std::to_string(row.roomy.alone.plan.num_timed),
                          fmt::format("{:.0f}", row.roomy.alone.rate()),
                          fmt::format("{:.0f}", row.roomy.together.rate())});
  }
  bar.finish();
  if (json) {
    say_json(Json{{"candidates_per_second", priced / seconds},
                  {"candidates_per_second_all_cores", priced / seconds_together},
                  {"num_cores", num_cores},
                  {"cases", cases}});
    return 0;
  }
  say("{}{:.0f} strategies a second on one core, memory and time of each (devices without a limit "
      "of "
      "memory; what does not fit a real one is asked no further); {:.0f} on all that may be used "
      "({})\n",
      Lines{report::to_text(table)}, priced / seconds, priced / seconds_together, num_cores);
  return 0;
}

}  // namespace

Run add_bench_plan(Subcommand command) {
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "print the result as JSON");
  return [json] { return run_plan(*json); };
}

}  // namespace piper::cli
