#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/plan_insight.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/whole_plan.h>
#include <piper/cli/whole_questions.h>
#include <piper/cost/mfu.h>
#include <piper/model/count.h>
#include <piper/plan/setting.h>
#include <piper/plan/threads.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <piper/stack/outside.h>
#include <piper/strategy/runnable.h>

#include <chrono>
#include <iostream>

namespace piper::cli {
namespace {

using plan::WholeCandidate;
using report::Align;

Json time_json(const stack::StepSeconds& t) {
  return {{"compute_seconds", t.compute}, {"recompute_seconds", t.recompute},
          {"tensor_seconds", t.tensor},   {"exchange_seconds", t.exchange},
          {"context_seconds", t.context}, {"messages_seconds", t.messages},
          {"idle_seconds", t.bubble},     {"reductions_seconds", t.reductions},
          {"update_seconds", t.update},   {"offload_seconds", t.offload}};
}

void print_table(const plan::WholeRequest& r, const std::vector<WholeCandidate>& list,
                 int64_t top) {
  report::Table table;
  table.columns = {{"", Align::kRight},
                   {"strategy"},
                   {"MFU", Align::kRight},
                   {"step", Align::kRight},
                   {"memory", Align::kRight},
                   {"bubble", Align::kRight},
                   {"runs here"}};
  const bool loaded = !list.empty() && list.front().under_load.has_value();
  if (loaded)
    for (const char* what : {"mean", "p95", "worst", "memory p95"})
      table.columns.push_back({what, Align::kRight});
  for (size_t i = 0; i < list.size() && std::ssize(table.rows) < top; ++i) {
    const WholeCandidate& c = list[i];
    table.rows.push_back({std::to_string(i + 1), plan::describe_whole(c.strategy),
                          format_percent(whole_mfu(r, c)), format_seconds(c.step_seconds()),
                          format_bytes(c.estimate.peak_bytes),
                          format_percent(c.estimate.time.bubble / c.estimate.seconds),
                          strategy::not_runnable(c.strategy).empty() ? "yes" : "no"});
    if (!loaded || !c.under_load) continue;
    for (const double seconds :
         {c.under_load->seconds.mean, c.under_load->seconds.p95, c.under_load->seconds.worst})
      table.rows.back().push_back(format_seconds(seconds));
    table.rows.back().push_back(format_bytes(c.under_load->peak_bytes.p95));
  }
  table.max_width = report::console_width();
  fmt::print("\n{}", report::to_text(table));
}

void print_families(const plan::WholeRequest& r, const plan::WholePlan& plan) {
  report::Table table;
  table.columns = {
      {"family"}, {"its best"}, {"why it lost"}, {"smallest change that would revive it"}};
  for (const plan::FamilyVerdict& v : explain_whole(r, plan))
    table.rows.push_back({v.family, v.best, v.lost, v.revive});
  table.max_width = report::console_width();
  fmt::print("\n{}", report::to_text(table));
}

// At most `most` points of the front, ends included.
std::vector<WholeCandidate> thinned(const std::vector<WholeCandidate>& front, size_t most) {
  if (front.size() <= most) return front;
  std::vector<WholeCandidate> out;
  for (size_t i = 0; i < most; ++i) out.push_back(front[i * (front.size() - 1) / (most - 1)]);
  return out;
}

Json to_json(const cost::Spread& spread) {
  return {{"mean", spread.mean}, {"p95", spread.p95}, {"worst", spread.worst}};
}

// With what the samples of the load come to.
Json ranked_json(const WholeQuestion& q, const plan::WholeRequest& r, const WholeCandidate& c) {
  Json json = whole_json(r, c);
  if (q.load && c.under_load)
    json["predicted"]["under_load"] = {{"load", q.load->load.text},
                                       {"num_samples", q.load->num_samples},
                                       {"seed", q.load->seed},
                                       {"step_seconds", to_json(c.under_load->seconds)},
                                       {"peak_bytes", to_json(c.under_load->peak_bytes)}};
  return json;
}

// What the price of the best leans on.
std::vector<cluster::Outside> outside_of(const plan::WholeRequest& r, const plan::WholePlan& plan) {
  if (plan.ranked.empty()) return {};
  const strategy::Strategy& best = plan.ranked.front().strategy;
  return stack::outside_measured(*r.model, *r.cluster, *r.stack, best,
                                 r.imbalance_at(best.mesh.ep));
}

void print_front(const plan::WholeRequest& r, const plan::WholePlan& plan) {
  report::Table table;
  table.columns = {{"MFU", Align::kRight},
                   {"step", Align::kRight},
                   {"memory", Align::kRight},
                   {"free", Align::kRight},
                   {"strategy"}};
  for (const WholeCandidate& c : thinned(plan.pareto, 10))
    table.rows.push_back({format_percent(whole_mfu(r, c)), format_seconds(c.step_seconds()),
                          format_bytes(c.estimate.peak_bytes),
                          format_bytes(r.memory_limit_bytes - c.estimate.peak_bytes),
                          plan::describe_whole(c.strategy)});
  table.max_width = report::console_width();
  fmt::print("\nfaster or smaller, not both ({} on the front of what was priced):\n{}",
             plan.pareto.size(), report::to_text(table));
}

void print_header(const plan::WholeRequest& r, const plan::WholePlan& plan,
                  const std::vector<plan::Default>& defaults, double seconds) {
  fmt::print("{} ({} parameters) on {} devices of {} ({}), as the stack '{}' would run it\n",
             r.model->name,
             format_count(static_cast<double>(model::count_parameters(*r.model).total())),
             r.num_devices, r.cluster->name, r.cluster->device, r.stack->name);
  fmt::print(
      "{} sequences of {} tokens a step, {}; {} usable a device; {} strategies priced in {}, "
      "{} of {} shapes passed over because their lower bound is above what is kept\n",
      r.global_batch_sequences, r.sequence, strategy::name(r.precision),
      format_bytes(r.memory_limit_bytes), plan.num_priced, format_seconds(seconds),
      plan.num_passed_over, plan.num_shapes);
  for (const plan::Default& d : defaults)
    fmt::print("default: {} {} ({})\n", d.name, d.value, d.why);
  if (const auto& calibration = r.stack->calibration_of(r.cluster->device);
      calibration.rows.empty())
    fmt::print("note: compute at {} of the micro-benchmarks' rate: {}\n",
               format_percent(calibration.compute_efficiency), calibration.source);
}

void print_load(const plan::LoadSamples& load, const model::Model& model,
                const plan::Imbalances& imbalances) {
  const char* statistic = cost::name(load.statistic);
  fmt::print(
      "ranked by the {} of {} samples of load {}, MFU, step and memory at it; rows of the busiest "
      "expert rank over the mean, {}, by ep:",
      statistic, load.num_samples, load.load.text, statistic);
  for (const auto& [ep, imbalance] : plan::statistic_of(imbalances, load.statistic))
    fmt::print("{} {}: {:.2f}", ep == imbalances.begin()->first ? "" : ",", ep, imbalance);
  fmt::print("\n");
  if (const std::string note = cost::stretch_of(load.load, model); !note.empty())
    fmt::print("note: {}\n", note);
}

void print_plan(const WholeQuestion& q, const plan::WholeRequest& r, const plan::WholePlan& plan) {
  if (plan.ranked.empty()) {
    fmt::print("\nnothing fits; what lacks least, by family:\n");
    return print_families(r, plan);
  }
  print_table(r, plan.ranked, q.top);
  const WholeCandidate& best = plan.ranked.front();
  fmt::print("\nthe best: {}\n", plan::describe_whole(best.strategy));
  fmt::print("what limits it: {}\n", plan::limits(best.estimate));
  fmt::print(
      "its memory: states {}, activations {}, working {}, beside them {}\n",
      format_bytes(best.estimate.fullest.weights_and_gradients + best.estimate.fullest.optimizer),
      format_bytes(best.estimate.fullest.activations), format_bytes(best.estimate.fullest.working),
      format_bytes(best.estimate.fullest.fixed));
  fmt::print("MFU = {}\n", cost::kMfuFormula);
  if (const auto outside = outside_of(r, plan); !outside.empty())
    fmt::print("outside of what was measured (the nearest edge holds): {}\n",
               cluster::to_text(outside));
  if (const auto lacking = strategy::not_runnable(best.strategy); !lacking.empty())
    fmt::print(
        "this Piper's runtime does not execute the best: {}; --runnable searches what it "
        "does\n",
        fmt::join(lacking, "; "));
  if (q.explain) {
    print_families(r, plan);
    print_front(r, plan);
    print_exchange(exchange_of(r, best.strategy));
  } else {
    fmt::print(
        "--explain: the best of each family, why it lost, what would revive it, the "
        "front of speed and memory, and what other exchanges would cost\n");
  }
}

}  // namespace

double whole_mfu(const plan::WholeRequest& r, const WholeCandidate& c) {
  return stack::mfu(*r.model, c.strategy, *r.cluster, c.step_seconds());
}

Json to_json(const WholeQuestion& q, const WholeAnswer& answer, double seconds) {
  const auto& [r, defaults, plan, imbalances] = answer;
  Json json{{"model", r.model->name},
            {"cluster", r.cluster->name},
            {"stack", r.stack->name},
            {"num_devices", r.num_devices},
            {"sequence", r.sequence},
            {"global_batch_sequences", r.global_batch_sequences},
            {"precision", strategy::name(r.precision)},
            {"memory_limit_bytes", r.memory_limit_bytes},
            {"num_considered", plan.num_priced},
            {"num_shapes", plan.num_shapes},
            {"num_shapes_passed_over", plan.num_passed_over},
            {"plan_seconds", seconds}};
  json["defaults"] = Json::object();
  for (const plan::Default& d : defaults)
    json["defaults"][d.name] = {{"value", d.value}, {"why", d.why}};
  json["strategies"] = Json::array();
  for (const WholeCandidate& c : plan.ranked)
    if (std::ssize(json["strategies"]) < q.top) json["strategies"].push_back(ranked_json(q, r, c));
  if (q.load)
    if (const std::string note = cost::stretch_of(q.load->load, *r.model); !note.empty())
      json["load_note"] = note;
  if (q.load)
    for (const auto& [ep, values] : imbalances)
      json["imbalance_by_ep"][std::to_string(ep)] = to_json(cost::spread_of(values));
  json["outside_measured"] = cluster::to_json(outside_of(r, plan));
  json["families"] = Json::array();
  const std::vector<plan::FamilyVerdict> verdicts = explain_whole(r, plan);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const plan::FamilyVerdict& v = verdicts[i];
    Json one{{"family", v.family},
             {"why_it_lost", v.lost},
             {"smallest_change", v.revive},
             {"num_priced", plan.families[i].num_priced}};
    if (plan.families[i].best) one["best"] = whole_json(r, *plan.families[i].best);
    if (plan.families[i].smallest) one["nearest"] = whole_json(r, *plan.families[i].smallest);
    json["families"].push_back(one);
  }
  json["pareto"] = Json::array();
  for (const WholeCandidate& c : thinned(plan.pareto, 64))
    json["pareto"].push_back({{"mfu", whole_mfu(r, c)},
                              {"step_seconds", c.step_seconds()},
                              {"peak_bytes", c.estimate.peak_bytes},
                              {"free_bytes", r.memory_limit_bytes - c.estimate.peak_bytes},
                              {"global_batch_sequences", c.strategy.global_batch_sequences},
                              {"strategy", plan::describe_whole(c.strategy)}});
  if (!plan.ranked.empty()) json.update(insight_json(r, plan.ranked.front().strategy));
  return json;
}

void print_whole(const WholeQuestion& q, const WholeAnswer& answer, double seconds) {
  print_header(answer.request, answer.plan, answer.defaults, seconds);
  if (q.load) print_load(*q.load, *answer.request.model, answer.imbalances);
  print_plan(q, answer.request, answer.plan);
}

Json whole_json(const plan::WholeRequest& r, const WholeCandidate& c) {
  Json json = strategy::to_json(c.strategy);
  const stack::Estimate& e = c.estimate;
  json["predicted"] = {
      {"mfu", whole_mfu(r, c)},
      {"step_seconds", c.step_seconds()},
      {"closed_form_seconds", e.seconds},
      {"peak_bytes", e.peak_bytes},
      {"mfu_formula", cost::kMfuFormula},
      {"tokens_per_second",
       static_cast<double>(c.strategy.sequence * c.strategy.global_batch_sequences) / e.seconds},
      {"method", c.played_seconds > 0 ? "whole step played" : "closed form"},
      {"stack", r.stack->name},
      {"time", time_json(e.time)},
      {"memory",
       {{"fullest_stage", e.fullest_stage},
        {"weights_and_gradients_bytes", e.fullest.weights_and_gradients},
        {"optimizer_bytes", e.fullest.optimizer},
        {"activations_bytes", e.fullest.activations},
        {"working_bytes", e.fullest.working},
        {"exchange_scratch_bytes", e.fullest.exchange},
        {"fixed_bytes", e.fullest.fixed}}},
      {"not_runnable", strategy::not_runnable(c.strategy)}};
  return json;
}

void add_threads_flag(Subcommand command, int64_t& num_threads) {
  command
      .add_option("--threads", num_threads,
                  "that share the search over every axis, which answers the same whatever their "
                  "number (default: the cores that may be used)")
      .check(integer_in(1, plan::kMostThreads));
}

plan::WholeRequest whole_request(const WholeQuestion& q, const stack::Stack& stack,
                                 std::vector<plan::Default>& defaults) {
  plan::Request open = q.request;
  open.fixed = {};
  const bool narrow = open.precision && *open.precision >= strategy::Precision::kFp8;
  if (narrow) open.precision = strategy::Precision::kBf16;
  // A batch that the fixed axes multiply to is no open question.
  const plan::WholeFixed& f = q.fixed;
  const bool settled = open.global_batch_sequences == 0 && f.dp.value_or(0) > 0 &&
                       f.micro_batch_sequences.value_or(0) > 0 &&
                       f.num_micro_batches.value_or(0) > 0;
  if (settled)
    open.global_batch_sequences = *f.dp * *f.micro_batch_sequences * *f.num_micro_batches;
  const plan::Setting setting = plan::make_setting(open);
  defaults = setting.defaults;
  if (settled)
    defaults.push_back(
        {"global_batch", std::to_string(open.global_batch_sequences), "dp x micro-batch x count"});
  return {.model = &q.request.model,
          .cluster = &q.request.cluster,
          .stack = &stack,
          .num_devices = setting.num_devices,
          .sequence = setting.sequence,
          .global_batch_sequences = setting.global_batch_sequences,
          .precision = narrow ? *q.request.precision : setting.precision,
          .fixed = q.fixed,
          .memory_limit_bytes = static_cast<double>(setting.memory_limit_bytes),
          .imbalance = q.imbalance,
          .num_kept = std::max<int64_t>(q.top, 16),
          .num_threads = q.num_threads > 0 ? q.num_threads : plan::num_usable_cores()};
}

WholeAnswer whole_answer(const WholeQuestion& q, const stack::Stack& stack,
                         const std::function<void(int64_t done, int64_t total)>& progress) {
  WholeAnswer answer;
  answer.request = whole_request(q, stack, answer.defaults);
  plan::WholeRequest& request = answer.request;
  // Nine tenths are the search, the rest is playing what it found.
  if (progress)
    request.progress = [&](int64_t done, int64_t total) { progress(9 * done, 10 * total); };
  if (q.load) {
    std::vector<int64_t> eps = plan::expert_degrees(*request.model);
    std::erase_if(eps, [&](int64_t ep) { return ep > request.num_devices; });
    answer.imbalances = plan::sampled_imbalances(*q.load, *request.model, eps);
    request.imbalance_by_ep = plan::statistic_of(answer.imbalances, q.load->statistic);
  }
  answer.plan = plan::search_whole(request);
  if (progress)
    request.progress = [&](int64_t done, int64_t total) { progress(9 * total + done, 10 * total); };
  if (q.load) {
    plan::play_under_load(request, answer.imbalances, q.load->statistic,
                          std::max(q.top, plan::kMostPlayed), answer.plan);
    if (!answer.plan.ranked.empty())  // what is said of the best beside the ranking
      request.imbalance = request.imbalance_at(answer.plan.ranked.front().strategy.mesh.ep);
  } else {
    plan::play_ranked(request, answer.plan, q.top);
  }
  request.progress = {};
  return answer;
}

int answer_whole(const WholeQuestion& q) {
  if (!q.what_if.empty()) return answer_whole_what_if(q);
  if (q.min_devices) return answer_whole_min_devices(q);
  const stack::Stack stack = stack::load_stack(q.stack);
  std::optional<report::Progress> bar;  // from when the search has something to show: no refusal
  const auto start = std::chrono::steady_clock::now();
  WholeAnswer answer = whole_answer(q, stack, [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 100, .unit = "%"});
    bar->set(100 * done / total, "");
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (bar) bar->finish();
  auto& [request, defaults, plan, imbalances] = answer;
  std::optional<PlacedPlan> placed;
  if (q.allocation && !plan.ranked.empty())
    placed = rank_on_nodes(*q.allocation, *request.model, plan.ranked, [](const WholeCandidate& c) {
      return Placeable{c.strategy, c.step_seconds(), plan::exposed_of(c.estimate.time)};
    });
  if (q.json) {
    Json json = to_json(q, answer, seconds);
    if (placed) json["placement"] = to_json(*placed, *request.model);
    std::cout << json.dump(2) << "\n";
  } else {
    print_whole(q, answer, seconds);
    if (placed) print_on_nodes(*placed, *request.model, q.nodes);
  }
  if (plan.ranked.empty()) return 1;
  if (placed) write_launch_files(*placed, *request.model, q.nodes);
  if (!q.out.empty()) {
    Json best = ranked_json(q, request, plan.ranked.front());
    best["predicted"].update(insight_json(request, plan.ranked.front().strategy));
    note_parameters(best, q.request.model);
    write_json_file(q.out, best);
    if (!q.json) fmt::print("\nwritten: {}\n", q.out);
  }
  return 0;
}

}  // namespace piper::cli
