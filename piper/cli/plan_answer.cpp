#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/plan_answer.h>
#include <piper/cli/plan_insight.h>
#include <piper/cli/prediction_table.h>
#include <piper/cli/runners.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/mfu.h>
#include <piper/files/output.h>
#include <piper/model/count.h>
#include <piper/model/trainable.h>
#include <piper/plan/excluded.h>
#include <piper/plan/shapes.h>
#include <piper/plan/threads.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <chrono>

namespace piper::cli {
namespace {

using plan::Candidate;
using report::Align;

// The words that all of them share, and each one's others.
struct Words {
  std::string shared;
  std::vector<std::string> own;
};
Words words_of(const std::vector<const Candidate*>& list) {
  Words words;
  std::vector<std::vector<std::string>> all;
  for (const Candidate* c : list) all.push_back(plan::axes_in_words(c->strategy));
  std::vector<std::string> shared;
  if (list.size() > 1)
    for (const std::string& word : all.front())
      if (std::ranges::all_of(all, [&](const std::vector<std::string>& other) {
            return std::ranges::find(other, word) != other.end();
          }))
        shared.push_back(word);
  for (std::vector<std::string>& one : all) {
    std::erase_if(one, [&](const std::string& word) {
      return std::ranges::find(shared, word) != shared.end();
    });
    words.own.push_back(one.empty() ? "as all" : fmt::format("{}", fmt::join(one, ", ")));
  }
  words.shared = fmt::format("{}", fmt::join(shared, ", "));
  return words;
}

void print_rows(report::Table table, const Words& words) {
  table.max_width = report::console_width();
  if (!words.shared.empty()) say("\nall: {}", words.shared);
  say("\n{}", Lines{report::to_text(table)});
}

bool fits(const plan::Request& r, const plan::LoadedStep& step) {
  return step.peak_bytes <= r.memory_limit_bytes;
}

void print_ranking(const plan::Request& r, const std::vector<Candidate>& ranked, int64_t top) {
  std::vector<const Candidate*> list;
  for (const Candidate& c : ranked)
    if (std::ssize(list) < top) list.push_back(&c);
  const Words words = words_of(list);
  report::Table table;
  table.columns = {{"", Align::kRight},       {"strategy"},
                   {"MFU", Align::kRight},    {"step", Align::kRight},
                   {"memory", Align::kRight}, {"bubble", Align::kRight}};
  const bool loaded = list.front()->under_load.has_value();
  if (loaded)
    for (const char* what : {"mean", "p95", "worst", "memory p95"})
      table.columns.push_back({what, Align::kRight});
  for (size_t i = 0; i < list.size(); ++i) {
    const Candidate& c = *list[i];
    table.rows.push_back({std::to_string(i + 1), words.own[i],
                          format_percent(plan::prediction_of(r, c).mfu),
                          format_seconds(c.step_seconds()), format_bytes(c.estimate.peak_bytes),
                          format_percent(c.time().bubble / c.step_seconds())});
    if (!loaded || !c.under_load) continue;
    for (const double seconds :
         {c.under_load->seconds.mean, c.under_load->seconds.p95, c.under_load->seconds.worst})
      table.rows.back().push_back(format_seconds(seconds));
    table.rows.back().push_back(format_bytes(c.under_load->peak_bytes.p95));
  }
  print_rows(std::move(table), words);
}

void print_choices(const plan::Request& r, const std::vector<plan::Choice>& choices,
                   const Candidate& best) {
  std::vector<const Candidate*> list;
  for (const plan::Choice& choice : choices) list.push_back(&choice.candidate);
  const Words words = words_of(list);
  report::Table table;
  table.columns = {
      {"strategy"}, {"MFU", Align::kRight}, {"step", Align::kRight}, {"memory", Align::kRight}};
  if (best.heavy) table.columns.push_back({fmt::format("at {}", cost::kHeavyLoad), Align::kRight});
  table.columns.push_back({"what it is"});
  table.columns.push_back({"against the best"});
  for (size_t i = 0; i < choices.size(); ++i) {
    const Candidate& c = choices[i].candidate;
    const bool is_best = plan::describe(c.strategy) == plan::describe(best.strategy);
    table.rows.push_back({words.own[i], format_percent(plan::prediction_of(r, c).mfu),
                          format_seconds(c.step_seconds()), format_bytes(c.estimate.peak_bytes)});
    if (best.heavy)
      table.rows.back().push_back(!c.heavy            ? ""
                                  : fits(r, *c.heavy) ? format_seconds(c.heavy->seconds)
                                                      : "does not fit");
    table.rows.back().push_back(choices[i].what);
    table.rows.back().push_back(is_best ? "" : plan::trade_of(best, c));
  }
  print_rows(std::move(table), words);
}

void print_families(const plan::Request& r, const plan::Plan& plan) {
  report::Table table;
  table.columns = {
      {"family"}, {"its best"}, {"why it lost"}, {"smallest change that would revive it"}};
  for (const plan::FamilyVerdict& v : explain_families(r, plan))
    table.rows.push_back({v.family, v.best, v.lost, v.revive});
  table.max_width = report::console_width();
  say("\n{}", Lines{report::to_text(table)});
}

// At most `most` points of the front, ends included.
std::vector<Candidate> thinned(const std::vector<Candidate>& front, size_t most) {
  if (front.size() <= most) return front;
  std::vector<Candidate> out;
  for (size_t i = 0; i < most; ++i) out.push_back(front[i * (front.size() - 1) / (most - 1)]);
  return out;
}

void print_excluded(const std::vector<plan::Excluded>& excluded) {
  if (excluded.empty()) return;
  report::Table table;
  table.columns = {
      {"not there"}, {"because"}, {"constraint"}, {"smallest change that would admit it"}};
  for (const plan::Excluded& e : excluded)
    table.rows.push_back({e.degrees, e.constraint, e.equation, e.smallest_change});
  table.max_width = report::console_width();
  say("\n{}", Lines{report::to_text(table)});
}

void print_front(const plan::Request& r, const plan::Plan& plan) {
  report::Table table;
  table.columns = {{"MFU", Align::kRight},
                   {"step", Align::kRight},
                   {"memory", Align::kRight},
                   {"free", Align::kRight},
                   {"strategy"}};
  for (const Candidate& c : thinned(plan.pareto, 10))
    table.rows.push_back({format_percent(plan::prediction_of(r, c).mfu),
                          format_seconds(c.step_seconds()), format_bytes(c.estimate.peak_bytes),
                          format_bytes(r.memory_limit_bytes - c.estimate.peak_bytes),
                          plan::describe(c.strategy)});
  table.max_width = report::console_width();
  say("\nfaster or smaller, not both ({} on the front of what was priced):\n{}", plan.pareto.size(),
      Lines{report::to_text(table)});
}

void print_header(const plan::Request& r, const plan::Plan& plan,
                  const std::vector<plan::Default>& defaults, double seconds) {
  say("{} ({} parameters) on {} devices of {} ({}), {}\n", r.model->name,
      format_count(static_cast<double>(model::count_parameters(*r.model).total())), r.num_devices,
      r.cluster->name, r.cluster->device,
      run_by(*r.trainer, r.has_exact_costs()) +
          (r.fixed.runnable && !r.has_exact_costs() ? ", of what this Piper trains" : ""));
  say("{} sequences of {} tokens a step, {}; {} usable a device; {} strategies priced in {}{}\n",
      r.global_batch_sequences, r.sequence, strategy::name(r.precision),
      format_bytes(r.memory_limit_bytes), plan.num_priced, format_seconds(seconds),
      plan.num_passed_over == 0
          ? ""
          : fmt::format(
                ", {} of {} shapes passed over because their lower bound is above what is kept",
                plan.num_passed_over, plan.num_shapes));
  for (const plan::Default& d : defaults) say("default: {} {} ({})\n", d.name, d.value, d.why);
  if (const auto& calibration = r.trainer->calibration_of(r.cluster->device);
      calibration.rows.empty() && !r.has_exact_costs())
    say("note: compute at {} of the micro-benchmarks' rate: {}\n",
        format_percent(calibration.compute_efficiency), calibration.source);
  if (plan.num_screened_out > 0)
    say("note: {} of {} shapes searched, those whose plain strategies are the fastest of all and "
        "of each family; on {} measured GPUs or fewer, all\n",
        plan.num_shapes - plan.num_screened_out, plan.num_shapes, r.most_unscreened_gpus);
}

void print_load(const PlanQuestion& q, const plan::Request& r, const plan::Plan& plan) {
  if (!r.load) {
    if (r.model->num_moe_layers() > 0) say("load balanced: every expert gets the same rows\n");
    return;
  }
  const cost::LoadDistribution& load = r.load->load;
  if (!plan.ranked.empty()) {
    const int64_t ep = plan.ranked.front().strategy.mesh.ep;
    say("load {}: MFU, step and memory are at what the busiest rank is expected to have, {:.2f} "
        "times the mean at the best plan's ep {}; of {} drawn steps 95 % fit\n",
        load.text, r.imbalance_at(ep), ep, r.load->num_samples);
  }
  if (q.explain || q.asked.load) {
    say("rows of the busiest expert rank over the mean, by ep:");
    for (const auto& [ep, imbalance] : r.imbalance_by_ep)
      say("{} {}: {:.2f}", ep == r.imbalance_by_ep.begin()->first ? "" : ",", ep, imbalance);
    say("\n");
  }
  if (const std::string note = cost::stretch_of(load, *r.model); !note.empty())
    say("note: {}\n", note);
}

// What moving experts is worth to the best, and what it costs.
void print_rebalancing(const cost::LoadSamples& load, const Candidate& best) {
  const cost::RebalancingGain& gain = *best.under_load->rebalancing;
  if (best.strategy.mesh.ep == 1)
    return say("the first has all experts on every rank: none moves\n");
  say("of the first, {}\n", rebalancing_text(load.rebalance, gain, load.num_samples));
  if (gain.pays)
    say("`piper train --rebalance {} --rebalance-every {}` does it\n",
        balance::to_text(load.rebalance), load.rebalance.every);
}

void print_plan(const PlanQuestion& q, const PlanAnswer& answer) {
  const plan::Request& r = answer.request;
  const plan::Plan& plan = answer.plan;
  if (plan.ranked.empty()) {
    say("\nnothing fits; what lacks least, by family:\n");
    print_families(r, plan);
    say("--min-devices says how many devices are enough\n");
    return print_excluded(plan::excluded_degrees(r));
  }
  const Candidate& best = plan.ranked.front();
  // On nodes the ranking is by more than the choices know.
  if (q.lists_ranking || q.allocation)
    print_ranking(r, plan.ranked, q.top);
  else
    print_choices(r, answer.choices, best);
  say("\nthe best: {}\n", plan::describe(best.strategy));
  say("what limits it: {}\n", plan::limits(best.time()));
  say("its memory: states {}, activations {}, working {}, beside them {}\n",
      format_bytes(best.estimate.fullest.weights_and_gradients + best.estimate.fullest.optimizer),
      format_bytes(best.estimate.fullest.activations), format_bytes(best.estimate.fullest.working),
      format_bytes(best.estimate.fullest.fixed));
  if (best.heavy)
    say("at load {}: step {}, memory {}, {}\n", cost::kHeavyLoad,
        format_seconds(best.heavy->seconds), format_bytes(best.heavy->peak_bytes),
        fits(r, *best.heavy) ? "which fits" : "which does not fit");
  const plan::Prediction prediction = plan::prediction_of(r, best);
  const auto devices = static_cast<double>(r.num_devices);
  say("{} tokens/s and {} a device\n", format_count(prediction.tokens_per_second / devices),
      format_flops_per_second(prediction.step_flops / prediction.step_seconds / devices));
  if (q.run_cost.is_asked()) say("{}\n", to_text(q.run_cost, prediction, r.num_devices));
  if (const int64_t modules = r.model->num_next_token_layers; modules > 0)
    say("left out: {} of multi-token prediction, which {} trains with; piper estimate "
        "--mtp-depth {} prices {}\n",
        modules == 1 ? "the module" : fmt::format("{} modules", modules), r.model->name, modules,
        modules == 1 ? "it" : "them");
  say("who can run it: {}\n", in_words(runners_of(*r.model, best.strategy)));
  if (const auto lacking = model::untrainable(*r.model, r.sequence); !lacking.empty()) {
    say("this Piper does not train the model:\n");
    for (const std::string& line : lacking) say("  {}\n", line);
  } else if (const auto lacks = strategy::not_runnable(best.strategy, *r.model); !lacks.empty()) {
    say("this Piper does not execute the best: {}; --runnable plans what it does\n",
        fmt::format("{}", fmt::join(lacks, "; ")));
  }
  if (q.explain) {
    print_families(r, plan);
    print_front(r, plan);
    print_exchange(plan::exchange_of(r, best.strategy));
    const plan::Reasons reasons = plan::reasons_of(r, best.strategy);
    for (const std::string& why :
         {reasons.reduction, reasons.reduction_start, reasons.moe_schedule})
      if (!why.empty()) say("{}\n", why);
    print_excluded(plan::excluded_degrees(r));
    say("MFU = {}\n", cost::kMfuFormula);
    if (const auto outside = plan::outside_measured(answer, q.top); !outside.empty())
      say("outside of what was measured (the nearest edge holds): {}\n", cluster::to_text(outside));
  } else {
    say("--explain says why the others lost\n");
  }
}

}  // namespace

Json to_json(const PlanQuestion& q, const PlanAnswer& answer, double seconds) {
  const auto& [r, defaults, plan, choices] = answer;
  Json json{{"model", r.model->name},
            {"cluster", r.cluster->name},
            {"trainer", r.trainer->name},
            {"num_devices", r.num_devices},
            {"sequence", r.sequence},
            {"global_batch_sequences", r.global_batch_sequences},
            {"precision", strategy::name(r.precision)},
            {"memory_limit_bytes", r.memory_limit_bytes},
            {"num_considered", plan.num_priced},
            {"num_shapes", plan.num_shapes},
            {"num_shapes_screened_out", plan.num_screened_out},
            {"num_shapes_passed_over", plan.num_passed_over},
            {"plan_seconds", seconds}};
  json["defaults"] = Json::object();
  for (const plan::Default& d : defaults)
    json["defaults"][d.name] = {{"value", d.value}, {"why", d.why}};
  json["strategies"] = Json::array();
  for (const Candidate& c : plan.ranked)
    if (std::ssize(json["strategies"]) < q.top) json["strategies"].push_back(priced_json(r, c));
  json["load"] = r.load ? r.load->load.text : "balanced";
  if (r.load)
    if (const std::string note = cost::stretch_of(r.load->load, *r.model); !note.empty())
      json["load_note"] = note;
  for (const auto& [ep, imbalance] : r.imbalance_by_ep)
    json["imbalance_by_ep"][std::to_string(ep)] = imbalance;
  json["outside_measured"] = cluster::to_json(plan::outside_measured(answer, q.top));
  json["choices"] = Json::array();
  for (const plan::Choice& choice : choices) {
    Json one = priced_json(r, choice.candidate);
    one["what"] = choice.what;
    json["choices"].push_back(std::move(one));
  }
  json["families"] = Json::array();
  const std::vector<plan::FamilyVerdict> verdicts = explain_families(r, plan);
  for (size_t i = 0; i < verdicts.size(); ++i) {
    const plan::FamilyVerdict& v = verdicts[i];
    Json one{{"family", v.family},
             {"wins", v.wins},
             {"why_it_lost", v.lost},
             {"smallest_change", v.revive},
             {"num_priced", plan.families[i].num_priced}};
    if (plan.families[i].best) one["best"] = priced_json(r, *plan.families[i].best);
    if (plan.families[i].smallest) one["nearest"] = priced_json(r, *plan.families[i].smallest);
    json["families"].push_back(one);
  }
  json["pareto"] = Json::array();
  for (const Candidate& c : thinned(plan.pareto, 64))
    json["pareto"].push_back({{"mfu", plan::prediction_of(r, c).mfu},
                              {"step_seconds", c.step_seconds()},
                              {"peak_bytes", c.estimate.peak_bytes},
                              {"free_bytes", r.memory_limit_bytes - c.estimate.peak_bytes},
                              {"global_batch_sequences", c.strategy.global_batch_sequences},
                              {"strategy", plan::describe(c.strategy)}});
  json["rejected"] = Json::array();
  for (const plan::Excluded& e : plan::excluded_degrees(r))
    json["rejected"].push_back({{"family", e.degrees},
                                {"constraint", e.constraint},
                                {"equation", e.equation},
                                {"smallest_change", e.smallest_change}});
  if (plan.ranked.empty()) return json;
  const strategy::Strategy& best = plan.ranked.front().strategy;
  json["num_next_token_layers_left_out"] = r.model->num_next_token_layers;
  if (q.run_cost.is_asked())
    json["run"] = to_json(q.run_cost, plan::prediction_of(r, plan.ranked.front()), r.num_devices);
  const plan::Reasons reasons = plan::reasons_of(r, best);
  if (!reasons.reduction.empty()) json["reduction"] = reasons.reduction;
  if (!reasons.reduction_start.empty()) json["reduction_start"] = reasons.reduction_start;
  if (!reasons.moe_schedule.empty()) json["moe_schedule"] = reasons.moe_schedule;
  json.update(insight_json(r, plan.ranked.front()));
  return json;
}

void print_plan_answer(const PlanQuestion& q, const PlanAnswer& answer, double seconds) {
  const plan::Request& r = answer.request;
  print_header(r, answer.plan, answer.defaults, seconds);
  print_load(q, r, answer.plan);
  if (const auto& best = answer.plan.ranked;
      !best.empty() && best.front().under_load && best.front().under_load->rebalancing)
    print_rebalancing(*r.load, best.front());
  print_plan(q, answer);
}

Json priced_json(const plan::Request& r, const Candidate& c) {
  Json json = strategy::to_json(c.strategy);
  json["predicted"] = plan::to_json(plan::prediction_of(r, c), *r.model, c.strategy, *r.trainer);
  json["predicted"]["runs_with"] = runners_of(*r.model, c.strategy);
  if (r.model->num_moe_layers() > 0)
    json["predicted"]["load"] = r.load ? r.load->load.text : "balanced";
  if (r.load && c.under_load) {
    Json& under = json["predicted"]["under_load"];
    under = {{"load", r.load->load.text},
             {"num_samples", r.load->num_samples},
             {"seed", r.load->seed},
             {"step_seconds", spread_json(c.under_load->seconds)},
             {"peak_bytes", spread_json(c.under_load->peak_bytes)}};
    if (c.under_load->rebalancing)
      under["rebalance"] = rebalancing_json(r.load->rebalance, *c.under_load->rebalancing);
  }
  if (c.heavy)
    json["predicted"]["heavy_load"] = {{"load", cost::kHeavyLoad},
                                       {"step_seconds", c.heavy->seconds},
                                       {"peak_bytes", c.heavy->peak_bytes},
                                       {"fits", c.heavy->peak_bytes <= r.memory_limit_bytes}};
  return json;
}

void add_threads_flag(Subcommand command, int64_t& num_threads) {
  command
      .add_option("--threads", num_threads,
                  "that share the search over every axis, which answers the same whatever their "
                  "number (default: the cores that may be used)")
      .check(integer_in(1, plan::kMostThreads));
}

PlanAnswer plan_answer(const PlanQuestion& q,
                       const std::function<void(int64_t done, int64_t total)>& progress) {
  PlanAnswer answer = plan::answer(
      q.asked, q.trainer,
      {.num_ranked = q.top, .with_choices = q.what_if.empty() || q.explain, .progress = progress});
  if (q.trainer_is_default)
    answer.defaults.insert(answer.defaults.begin(), {"trainer", q.trainer.name,
                                                     answer.request.has_exact_costs()
                                                         ? "this machine was measured by it"
                                                         : "piper trainer --list has the others"});
  return answer;
}

int answer_plan(const PlanQuestion& q) {
  std::optional<report::Progress> bar;  // from when the search has something to show: no refusal
  const auto start = std::chrono::steady_clock::now();
  PlanAnswer answer = plan_answer(q, [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 100, .unit = "%"});
    bar->set(100 * done / total, "");
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (bar) bar->finish();
  auto& [request, defaults, plan, choices] = answer;
  std::optional<PlacedPlan> placed;
  if (q.allocation && !plan.ranked.empty()) placed = plan::place_on_nodes(*q.allocation, answer);
  if (q.json) {
    Json json = to_json(q, answer, seconds);
    if (placed) json["placement"] = to_json(*placed, *request.model);
    say_json(json);
  } else {
    print_plan_answer(q, answer, seconds);
    if (placed) print_on_nodes(*placed, *request.model, q.nodes);
  }
  if (plan.ranked.empty()) return 1;
  if (placed) write_launch_files(*placed, *request.model, q.nodes);
  if (!q.out.empty()) {
    Json best = priced_json(request, plan.ranked.front());
    best["predicted"].update(insight_json(request, plan.ranked.front()));
    note_parameters(best, q.asked.model);
    files::write_json_file(q.out, best);
    if (!q.json) say("\nwritten: {}\n", q.out);
  }
  return 0;
}

}  // namespace piper::cli
