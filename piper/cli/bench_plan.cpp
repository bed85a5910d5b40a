// piper bench plan: how many strategies a second the search over every axis prices on one core, and on all that may be used.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/bench.h>
#include <piper/cli/whole_plan.h>
#include <piper/model/import.h>
#include <piper/plan/threads.h>
#include <piper/report/table.h>

#include <chrono>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Case {
  const char* model;
  const char* cluster;
  int64_t devices;
};
constexpr Case kCases[] = {{"mixtral-8x7b", "dgx-h100", 64},
                           {"deepseek-v3", "dgx-h100", 2048},
                           {"kimi-k2", "dgx-h100", 4096}};

struct Timed {
  plan::WholePlan plan;
  double seconds = 0;
  double rate() const { return static_cast<double>(plan.num_priced) / seconds; }
};

Timed timed(plan::WholeRequest request, int64_t num_threads) {
  request.num_threads = num_threads;
  const auto start = std::chrono::steady_clock::now();
  Timed t{.plan = plan::search_whole(request)};
  t.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return t;
}

int run(bool json) {
  const int64_t num_cores = plan::num_usable_cores();
  Json cases = Json::array();
  report::Table table;
  table.columns = {{"model"},
                   {"devices", report::Align::kRight},
                   {"strategies priced", report::Align::kRight},
                   {"shapes passed over", report::Align::kRight},
                   {"seconds", report::Align::kRight},
                   {"a second", report::Align::kRight},
                   {fmt::format("on {} cores", num_cores), report::Align::kRight},
                   {"best MFU", report::Align::kRight}};
  double priced = 0, seconds = 0, seconds_together = 0;
  for (const Case& c : kCases) {
    WholeQuestion q;
    q.request.model = model::load_model(c.model);
    q.request.cluster = cluster::load_cluster(c.cluster);
    q.request.num_devices = c.devices;
    const stack::Stack stack = stack::load_stack(q.stack);
    std::vector<plan::Default> defaults;
    const plan::WholeRequest request = whole_request(q, stack, defaults);
    const Timed alone = timed(request, 1);
    const Timed together = num_cores == 1 ? alone : timed(request, num_cores);
    const plan::WholePlan& plan = alone.plan;
    priced += static_cast<double>(plan.num_priced);
    seconds += alone.seconds;
    seconds_together += together.seconds;
    const double mfu = plan.ranked.empty()
                           ? 0
                           : stack::mfu(*request.model, plan.ranked.front().strategy,
                                        *request.cluster, plan.ranked.front().estimate.seconds);
    cases.push_back({{"model", c.model},
                     {"cluster", c.cluster},
                     {"num_devices", c.devices},
                     {"candidates", plan.num_priced},
                     {"shapes", plan.num_shapes},
                     {"shapes_passed_over", plan.num_passed_over},
                     {"seconds", alone.seconds},
                     {"seconds_all_cores", together.seconds},
                     {"candidates_per_second", alone.rate()},
                     {"candidates_per_second_all_cores", together.rate()},
                     {"best_mfu", mfu}});
    table.rows.push_back({c.model, std::to_string(c.devices), std::to_string(plan.num_priced),
                          fmt::format("{} of {}", plan.num_passed_over, plan.num_shapes),
                          fmt::format("{:.2f}", alone.seconds), fmt::format("{:.0f}", alone.rate()),
                          fmt::format("{:.0f}", together.rate()), format_percent(mfu)});
  }
  if (json)
    std::cout << Json{{"candidates_per_second", priced / seconds},
                      {"candidates_per_second_all_cores", priced / seconds_together},
                      {"num_cores", num_cores},
                      {"cases", cases}}
                     .dump(2)
              << "\n";
  else
    fmt::print(
        "{}{:.0f} strategies a second on one core, memory of each, time of what fits; {:.0f} on "
        "all that may be "
        "used ({})\n",
        report::to_text(table), priced / seconds, priced / seconds_together, num_cores);
  return 0;
}

}  // namespace

Run add_bench_plan(Subcommand command) {
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "print the result as JSON");
  return [json] { return run(*json); };
}

}  // namespace piper::cli
