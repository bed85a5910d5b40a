// piper estimate: one strategy priced in full: memory by stage and component, time by component,
// and the formulas of the paper as printed beside them.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/fits.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/stack_view.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/whole_estimate.h>
#include <piper/cost/outside.h>
#include <piper/cost/paper.h>
#include <piper/plan/prediction.h>
#include <piper/plan/search.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

using report::Align;
namespace paper = cost::paper;

constexpr int64_t kMostTasks = 400'000;  // of a simulation

struct Flags {
  StrategyFlags strategy;
  LoadFlags load;
  std::string stack;  // "" = the runtime's own costs
  bool flash_attention = true, json = false;
  int64_t ffn_values = 3;
};

// Eq. 1-6 for the same strategy; b is the batch of one expert-data replica (PP x EP devices).
struct PaperForm {
  double memory_bytes = 0;        // eq. 3 or 4, stage 0
  double all_to_all_seconds = 0;  // eq. 6, one layer's forward of one micro-batch
  double alpha = 0;               // M / PP
};

PaperForm paper_form(const Flags& flags, const Priced& priced) {
  const strategy::Strategy& s = priced.strategy;
  const paper::PaperModel shape = paper::from_model(priced.model);
  const paper::Options options{.flash_attention = flags.flash_attention,
                               .ffn_values = static_cast<int>(flags.ffn_values)};
  const paper::Degrees degrees{.pp = s.mesh.pp, .ep = s.mesh.ep};
  const int64_t sequences = s.global_batch_sequences / s.mesh.edp();
  const paper::Batch batch{.sequences = static_cast<double>(sequences), .sequence = s.sequence};
  PaperForm form;
  form.alpha = static_cast<double>(s.num_micro_batches) / static_cast<double>(s.mesh.pp);
  form.memory_bytes = s.schedule == strategy::PipelineSchedule::kGPipe
                          ? paper::memory_gpipe(shape, batch, degrees, options)
                          : paper::memory_1f1b(shape, batch, degrees, form.alpha, 0, options);
  const paper::Batch micro_batch{
      .sequences = batch.sequences / static_cast<double>(s.num_micro_batches),
      .sequence = s.sequence};
  for (const cluster::Level& level : priced.cluster.levels)
    if (level.num_nics > 0 && level.nic_bytes_per_second > 0) {
      form.all_to_all_seconds =
          paper::all_to_all_seconds(shape, micro_batch, s.mesh.ep, level.nic_bytes_per_second,
                                    static_cast<double>(priced.cluster.devices_per_node()) /
                                        static_cast<double>(level.num_nics));
      break;
    }
  return form;
}

using OutsideList = std::vector<cluster::Outside>;

Fit fit_of(const Priced& priced, const plan::Prediction& p) {
  return memory_fit(priced.cluster, static_cast<double>(p.peak_bytes), p.estimate.fullest_stage);
}

Json to_json(const Priced& priced, const plan::Prediction& prediction, const PaperForm& form,
             const OutsideList& outside) {
  strategy::Strategy strategy = priced.strategy;
  strategy.predicted = nullptr;
  Json json{{"model", priced.model.name},
            {"cluster", priced.cluster.name},
            {"strategy", strategy::to_json(strategy)},
            {"predicted", plan::to_json(prediction)},
            {"outside_measured", cluster::to_json(outside)},
            {"paper",
             {{"memory_bytes", form.memory_bytes},
              {"memory_equation",
               priced.strategy.schedule == strategy::PipelineSchedule::kGPipe ? "eq. 3" : "eq. 4"},
              {"all_to_all_seconds", form.all_to_all_seconds},
              {"alpha", form.alpha}}}};
  add_to(json, fit_of(priced, prediction));
  add_to(json, stack_view(priced));
  return json;
}

void print_memory(const plan::Prediction& p) {
  report::Table table;
  table.columns = {
      {"stage", Align::kRight},     {"weights", Align::kRight},  {"gradients", Align::kRight},
      {"optimizer", Align::kRight}, {"kept", Align::kRight},     {"micro-batches", Align::kRight},
      {"working", Align::kRight},   {"messages", Align::kRight}, {"total", Align::kRight}};
  const auto cell = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  for (size_t i = 0; i < p.estimate.memory.size(); ++i) {
    const cost::StageMemory& m = p.estimate.memory[i];
    table.rows.push_back({std::to_string(i), cell(m.weights), cell(m.gradients), cell(m.optimizer),
                          cell(m.activations.total()), std::to_string(m.in_flight), cell(m.working),
                          cell(m.messages), cell(m.total())});
  }
  fmt::print(
      "\nmemory of a device (kept: activations of the micro-batches in flight but the newest)\n{}",
      report::to_text(table));
  const auto scratch = [](const cost::StageMemory& m) { return m.exchange_scratch; };
  if (const int64_t most = scratch(*std::ranges::max_element(p.estimate.memory, {}, scratch));
      most > 0)
    fmt::print("in the working memory: {} of scratch of one exchange\n", cell(most));
  fmt::print("fullest: stage {}, {} of {}\n", p.estimate.fullest_stage, cell(p.peak_bytes),
             cell(p.memory_bytes));
}

void print_activations(const plan::Prediction& p) {
  const cost::KeptBytes& kept =
      p.estimate.memory[static_cast<size_t>(p.estimate.fullest_stage)].activations;
  if (kept.total() == 0) return;
  report::Table table;
  table.columns = {{"kept on the fullest stage"}, {"", Align::kRight}};
  for (const auto& [what, bytes] : {std::pair{"hidden states", kept.hidden},
                                    {"attention", kept.attention},
                                    {"gate", kept.gate},
                                    {"token copies", kept.rows},
                                    {"experts", kept.experts},
                                    {"dense MLP", kept.dense_mlp},
                                    {"head", kept.head}})
    if (bytes > 0) table.rows.push_back({what, format_bytes(static_cast<double>(bytes))});
  fmt::print("\n{}", report::to_text(table));
}

void print_time(const plan::Prediction& p) {
  const cost::StepBreakdown& t = p.estimate.time;
  report::Table table;
  table.columns = {
      {"time of the busiest stage"}, {"", Align::kRight}, {"of the step", Align::kRight}};
  for (const auto& [what, seconds] : {std::pair{"forward", t.forward},
                                      {"backward", t.backward},
                                      {"recomputation", t.recompute},
                                      {"exchange of tokens", t.exchange},
                                      {"gradient reductions", t.reductions},
                                      {"norm, statistics, optimizer", t.update},
                                      {"idle (bubble, messages, cores)", t.idle}})
    table.rows.push_back({what, format_seconds(seconds), format_percent(seconds / p.step_seconds)});
  table.rows.push_back({});
  table.rows.push_back(
      {fmt::format("step ({})", plan::name(p.method)), format_seconds(p.step_seconds), ""});
  fmt::print("\n{}", report::to_text(table));
}

void print_text(const Priced& priced, const plan::Prediction& p, const PaperForm& form,
                const OutsideList& outside) {
  fmt::print("{} on {}: {}\n", priced.model.name, priced.cluster.name, describe(priced.strategy));
  print_memory(p);
  fmt::print("{}", to_text(fit_of(priced, p)));
  print_activations(p);
  print_time(p);
  if (p.method == plan::Method::kSimulation)
    fmt::print("closed form: {}\n", format_seconds(p.closed_form_seconds));
  fmt::print(
      "\nMFU {}, {} tokens/s; {} of peak {}\nMFU = {}\neq. 12: {} of {} while computing x {} of "
      "the step = {}\n",
      format_percent(p.mfu), format_count(p.tokens_per_second),
      format_flops_per_second(p.step_flops / p.step_seconds),
      format_flops_per_second(p.peak_flops_per_second), cost::kMfuFormula,
      format_percent(p.effective.hardware_efficiency),
      format_flops_per_second(p.effective.effective_peak_flops_per_second),
      format_percent(p.effective.compute_fraction), format_percent(p.effective.mfu()));
  fmt::print("{}", to_text(stack_view(priced)));
  fmt::print("\npaper, as printed: stage 0 {} ({}, alpha {:.2f})", format_bytes(form.memory_bytes),
             priced.strategy.schedule == strategy::PipelineSchedule::kGPipe ? "eq. 3" : "eq. 4",
             form.alpha);
  if (form.all_to_all_seconds > 0)
    fmt::print(", exchange of a layer's forward at least {} (eq. 6)",
               format_seconds(form.all_to_all_seconds));
  fmt::print("\n");
  if (!outside.empty())
    fmt::print("outside of what was measured (the nearest edge holds): {}\n",
               cluster::to_text(outside));
}

// The closed form under every sample of the load.
SampledSteps under_load(const Flags& flags, const Priced& priced,
                        const cost::LoadDistribution& load) {
  const strategy::Strategy& s = priced.strategy;
  SampledSteps sampled{.load_note = cost::stretch_of(load, priced.model)};
  for (int64_t i = 0; i < flags.load.num_samples; ++i) {
    const cost::ExpertLoad sample = cost::sample_load(load, priced.model, s.mesh.ep,
                                                      flags.load.seed, i, flags.load.num_samples);
    const cost::StepEstimate estimate =
        cost::Estimator(priced.model, priced.cluster, s.precision, s.sequence, &sample).estimate(s);
    sampled.seconds.push_back(estimate.seconds);
    sampled.peak_bytes.push_back(static_cast<double>(estimate.peak_bytes));
  }
  return sampled;
}

int run(const Flags& flags) {
  const Priced priced = priced_from_flags(flags.strategy);
  if (!flags.stack.empty() || !strategy::not_runnable(priced.strategy).empty())
    return estimate_whole(priced, flags.stack.empty() ? "piper" : flags.stack, flags.load,
                          flags.json);
  const std::optional<cost::LoadDistribution> load = load_of(flags.load);
  cost::Estimator estimator(priced.model, priced.cluster, priced.strategy.precision,
                            priced.strategy.sequence);
  const auto simulated =
      plan::simulated_seconds(priced.model, priced.cluster, priced.strategy, kMostTasks);
  const plan::Prediction prediction =
      plan::make_prediction(priced.model, priced.cluster, priced.strategy,
                            estimator.estimate(priced.strategy), simulated.value_or(-1));
  const PaperForm form = paper_form(flags, priced);
  const OutsideList outside =
      cost::outside_measured(priced.model, priced.cluster, {&priced.strategy, 1});
  std::optional<SampledSteps> sampled;
  if (load) sampled = under_load(flags, priced, *load);
  if (flags.json) {
    Json json = to_json(priced, prediction, form, outside);
    if (sampled) json["under_load"] = to_json(flags.load, *sampled);
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  print_text(priced, prediction, form, outside);
  if (sampled)
    fmt::print("\n{}", to_text(fmt::format("load {}, {} samples (closed form; above: balanced)",
                                           flags.load.load, flags.load.num_samples),
                               *sampled));
  return 0;
}

}  // namespace

Run add_estimate(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  add_strategy_flags(command, flags->strategy);
  add_load_flags(command, flags->load);
  command.add_flag("--flash-attention,!--no-flash-attention", flags->flash_attention,
                   "paper form: 2bHs instead of 4bHs^2 (on)");
  command
      .add_option("--ffn-values", flags->ffn_values,
                  "paper form: values kept a token and expert, 3 or 4 d_ffn")
      .check(integer_in(3, 4))
      .show_default();
  command.add_option(
      "--stack", flags->stack,
      "price it as this software would run it (a name of configs/stacks or a file); always so "
      "for what this Piper does not execute");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
