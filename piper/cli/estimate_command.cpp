// piper estimate: one strategy priced in full: memory by stage and component, time by component.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/fits.h>
#include <piper/cli/load_flags.h>
#include <piper/cli/prediction_table.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/executor_estimator.h>
#include <piper/plan/under_load.h>
#include <piper/report/table.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

using report::Align;

struct EstimateFlags {
  StrategyFlags strategy;
  LoadFlags load;
  std::string trainer;  // "" = not given
  bool json = false;
};

struct Estimated {
  Priced priced;
  cost::TrainerProfile trainer;
  cost::LoadDistribution load;
  plan::Prediction prediction;
  plan::LoadedStep heavy;  // under cost::kHeavyLoad
  std::vector<cluster::Outside> outside;
  std::optional<SampledSteps> sampled;
  Fit fit() const {
    return memory_fit(priced.cluster, prediction.estimate.peak_bytes,
                      prediction.estimate.fullest_stage);
  }
};

Json to_json(const EstimateFlags& flags, const Estimated& a) {
  strategy::Strategy strategy = a.priced.strategy;
  strategy.predicted = nullptr;
  Json json{{"model", a.priced.model.name},
            {"cluster", a.priced.cluster.name},
            {"strategy", strategy::to_json(strategy)},
            {"predicted", plan::to_json(a.prediction, a.priced.model, strategy, a.trainer)},
            {"outside_measured", cluster::to_json(a.outside)}};
  if (a.prediction.estimate.exact) {
    const cost::EffectiveMfu effective =
        plan::effective_mfu(a.prediction, a.priced.cluster, strategy);
    json["predicted"]["mfu_effective"] = {
        {"mfu", effective.mfu()},
        {"hardware_efficiency", effective.hardware_efficiency},
        {"compute_fraction", effective.compute_fraction},
        {"effective_peak_flops_per_second", effective.effective_peak_flops_per_second}};
  }
  if (a.priced.model.num_moe_layers() > 0) {
    json["predicted"]["load"] = a.load.text;
    json["predicted"]["heavy_load"] = {
        {"load", cost::kHeavyLoad},
        {"step_seconds", a.heavy.seconds},
        {"peak_bytes", a.heavy.peak_bytes},
        {"fits", memory_fit(a.priced.cluster, a.heavy.peak_bytes, 0).fits()}};
  }
  if (a.sampled) json["under_load"] = to_json(flags.load, *a.sampled);
  add_to(json, a.fit());
  return json;
}

void print_memory(const plan::Prediction& p) {
  report::Table table;
  table.columns = {
      {"stage", Align::kRight},     {"weights", Align::kRight},  {"gradients", Align::kRight},
      {"optimizer", Align::kRight}, {"kept", Align::kRight},     {"micro-batches", Align::kRight},
      {"working", Align::kRight},   {"messages", Align::kRight}, {"total", Align::kRight}};
  const auto cell = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  for (size_t i = 0; i < p.estimate.exact->memory.size(); ++i) {
    const cost::StageMemory& m = p.estimate.exact->memory[i];
    table.rows.push_back({std::to_string(i), cell(m.weights), cell(m.gradients), cell(m.optimizer),
                          cell(m.activations.total()), std::to_string(m.in_flight), cell(m.working),
                          cell(m.messages), cell(m.total())});
  }
  say("\nmemory of a device (kept: activations of the micro-batches in flight but the newest)\n{}",
      Lines{report::to_text(table)});
  const auto scratch = [](const cost::StageMemory& m) { return m.exchange_scratch; };
  if (const int64_t most =
          scratch(*std::ranges::max_element(p.estimate.exact->memory, {}, scratch));
      most > 0)
    say("in the working memory: {} of scratch of one exchange\n", cell(most));
}

void print_activations(const plan::Prediction& p) {
  const cost::KeptBytes& kept =
      p.estimate.exact->memory[static_cast<size_t>(p.estimate.fullest_stage)].activations;
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
  say("\n{}", Lines{report::to_text(table)});
}

// Every stage, where costs are exact.
void print_stages(const plan::Prediction& p) {
  if (!p.estimate.exact) return;
  print_memory(p);
  print_activations(p);
}

void print_mfu(const Estimated& a) {
  const plan::Prediction& p = a.prediction;
  say("\nMFU {}, {} tokens/s; {} of peak {}\nMFU = {}\n", format_percent(p.mfu),
      format_count(p.tokens_per_second), format_flops_per_second(p.step_flops / p.step_seconds),
      format_flops_per_second(p.peak_flops_per_second), cost::kMfuFormula);
  if (!p.estimate.exact) return;
  const cost::EffectiveMfu effective = plan::effective_mfu(p, a.priced.cluster, a.priced.strategy);
  say("eq. 12: {} of {} while computing x {} of the step = {}\n",
      format_percent(effective.hardware_efficiency),
      format_flops_per_second(effective.effective_peak_flops_per_second),
      format_percent(effective.compute_fraction), format_percent(effective.mfu()));
}

void print_text(const EstimateFlags& flags, const Estimated& a) {
  const strategy::Strategy& s = a.priced.strategy;
  say("{} on {}: {}\npriced {}\n", a.priced.model.name, a.priced.cluster.name, plan::describe(s),
      run_by(a.trainer, a.prediction.estimate.exact != nullptr));
  for (const std::string& line : strategy::untrainable(a.priced.model, s))
    say("not for this Piper's executor: {}\n", line);
  if (const std::string words = in_words(a.load, s, a.priced.model); !words.empty())
    say("{}\n", words);
  print_prediction(a.prediction);
  say("{}", Lines{to_text(a.fit())});
  if (a.priced.model.num_moe_layers() > 0)
    say("at load {}: step {}, memory {}{}\n", cost::kHeavyLoad, format_seconds(a.heavy.seconds),
        format_bytes(a.heavy.peak_bytes),
        memory_fit(a.priced.cluster, a.heavy.peak_bytes, 0).fits() ? "" : ", does not fit");
  print_stages(a.prediction);
  print_mfu(a);
  if (!a.outside.empty())
    say("outside of what was measured (the nearest edge holds): {}\n", cluster::to_text(a.outside));
  if (a.sampled)
    say("\n{}", Lines{to_text(fmt::format("load {}, {} samples (closed form)", flags.load.load,
                                          flags.load.num_samples),
                              *a.sampled)});
}

// What was simulated is by as much slower than the closed form under the other load.
plan::LoadedStep heavy_of(cost::Estimator& estimator, const Priced& p,
                          const plan::Prediction& prediction) {
  const cost::LoadDistribution load = cost::parse_load(cost::kHeavyLoad);
  const cost::Estimate e = estimator.estimate(p.strategy, imbalance_of(load, p.strategy, p.model));
  return {e.seconds * (prediction.step_seconds / prediction.estimate.seconds), e.peak_bytes};
}

// The closed form under every sample of --load.
std::optional<SampledSteps> under_load(const EstimateFlags& flags, const Priced& priced,
                                       cost::Estimator& estimator) {
  const std::optional<cost::LoadDistribution> load = load_of(flags.load);
  if (!load) return std::nullopt;
  const cost::LoadSamples samples{
      .load = *load, .num_samples = flags.load.num_samples, .seed = flags.load.seed};
  cost::SampledEstimate sampled = estimator.sampled(
      priced.strategy, plan::sampled_loads(samples, priced.model, priced.strategy.mesh.ep));
  return SampledSteps{std::move(sampled.seconds), std::move(sampled.peak_bytes),
                      cost::stretch_of(*load, priced.model)};
}

int run_estimate(const EstimateFlags& flags) {
  Estimated a{.priced = priced_from_flags(flags.strategy)};
  const Priced& p = a.priced;
  a.trainer = trainer_of(flags.trainer, p.strategy, p.cluster);
  a.load = load_of(flags.load.load, p.strategy);
  const double imbalance = imbalance_of(a.load, p.strategy, p.model);
  const std::unique_ptr<cost::Estimator> estimator =
      cost::make_estimator_of(p.strategy, p.model, p.cluster, a.trainer);
  a.sampled = under_load(flags, p, *estimator);
  a.prediction = plan::predict(*estimator, p.model, p.cluster, p.strategy, imbalance);
  a.heavy = heavy_of(*estimator, p, a.prediction);
  a.outside = estimator->outside_measured({p.strategy}, imbalance);
  if (flags.json)
    say_json(to_json(flags, a));
  else
    print_text(flags, a);
  return 0;
}

}  // namespace

Run add_estimate(Subcommand command) {
  auto flags = std::make_shared<EstimateFlags>();
  add_strategy_flags(command, flags->strategy);
  add_load_flags(command, flags->load);
  for (const char* name : {"--flash-attention", "--no-flash-attention", "--ffn-values"})
    command.moved(name, fmt::format("piper-studies estimate {}", name));
  add_trainer_flag(command, flags->trainer, kAsItsFile);
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_estimate(*flags); };
}

}  // namespace piper::cli
