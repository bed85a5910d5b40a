#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cost/executor_estimator.h>
#include <piper/model/trainable.h>
#include <piper/plan/prediction.h>
#include <piper/plan/simulated_step.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace piper::plan {
namespace {

Json time_json(const cost::StepSeconds& t) {
  return {{"compute_seconds", t.compute}, {"recompute_seconds", t.recompute},
          {"tensor_seconds", t.tensor},   {"exchange_seconds", t.exchange},
          {"context_seconds", t.context}, {"messages_seconds", t.messages},
          {"idle_seconds", t.bubble},     {"reductions_seconds", t.reductions},
          {"update_seconds", t.update},   {"offload_seconds", t.offload}};
}

Json activations_json(const cost::KeptBytes& kept) {
  return {{"hidden_bytes", kept.hidden},   {"attention_bytes", kept.attention},
          {"gate_bytes", kept.gate},       {"rows_bytes", kept.rows},
          {"experts_bytes", kept.experts}, {"dense_mlp_bytes", kept.dense_mlp},
          {"head_bytes", kept.head}};
}

Json stage_json(size_t stage, const cost::StageMemory& memory) {
  return {{"stage", stage},
          {"total_bytes", memory.total()},
          {"weights_bytes", memory.weights},
          {"gradients_bytes", memory.gradients},
          {"optimizer_bytes", memory.optimizer},
          {"activations_bytes", memory.activations.total()},
          {"activations", activations_json(memory.activations)},
          {"working_bytes", memory.working},
          {"messages_bytes", memory.messages},
          {"exchange_scratch_bytes", memory.exchange_scratch},
          {"micro_batches_in_flight", memory.in_flight}};
}

// With exact costs every stage too.
Json memory_json(const cost::Estimate& e) {
  Json json{{"fullest_stage", e.fullest_stage},
            {"weights_and_gradients_bytes", e.fullest.weights_and_gradients},
            {"optimizer_bytes", e.fullest.optimizer},
            {"activations_bytes", e.fullest.activations},
            {"working_bytes", e.fullest.working},
            {"exchange_scratch_bytes", e.fullest.exchange},
            {"fixed_bytes", e.fullest.fixed}};
  if (!e.exact) return json;
  for (size_t stage = 0; stage < e.exact->memory.size(); ++stage)
    json["stages"].push_back(stage_json(stage, e.exact->memory[stage]));
  return json;
}

}  // namespace

Prediction make_prediction(const model::Model& model, const cluster::Cluster& cluster,
                           const strategy::Strategy& s, const cost::Estimate& estimate,
                           std::optional<double> simulated_seconds) {
  Prediction p{.step_seconds = simulated_seconds.value_or(estimate.seconds),
               .simulated_seconds = simulated_seconds,
               .estimate = estimate};
  p.estimate.time = time_of(estimate, p.step_seconds);
  p.mfu = cost::mfu(model, s, cluster, p.step_seconds);
  p.tokens_per_second = static_cast<double>(s.sequence * s.global_batch_sequences) / p.step_seconds;
  p.step_flops =
      cost::step_flops(model, s.sequence, s.global_batch_sequences, cost::kept_part(model, s));
  p.peak_flops_per_second = cost::peak_flops_per_second(cluster, s.precision, s.mesh.world());
  return p;
}

Json to_json(const Prediction& p, const model::Model& model, const strategy::Strategy& s,
             const cost::TrainerProfile& trainer) {
  return {{"mfu", p.mfu},
          {"step_seconds", p.step_seconds},
          {"closed_form_seconds", p.estimate.seconds},
          {"method", p.simulated_seconds ? "simulation" : "closed form"},
          {"peak_bytes", p.estimate.peak_bytes},
          {"mfu_formula", cost::kMfuFormula},
          {"tokens_per_second", p.tokens_per_second},
          {"step_flops", p.step_flops},
          {"peak_flops_per_second", p.peak_flops_per_second},
          {"trainer", trainer.name},
          {"time", time_json(p.estimate.time)},
          {"memory", memory_json(p.estimate)},
          {"untrainable", model::untrainable(model, s.sequence)},
          {"not_runnable", strategy::not_runnable(s, model)}};
}

Prediction predict(cost::Estimator& estimator, const model::Model& model,
                   const cluster::Cluster& cluster, const strategy::Strategy& s, double imbalance) {
  const cost::Estimate estimate = estimator.estimate(s, imbalance);
  std::optional<double> simulated;
  if (may_simulate(estimator, s)) simulated = simulated_seconds(estimator, s, imbalance);
  return make_prediction(model, cluster, s, estimate, simulated);
}

cost::EffectiveMfu effective_mfu(const Prediction& p, const cluster::Cluster& cluster,
                                 const strategy::Strategy& s) {
  const cost::StepSeconds& time = p.estimate.time;
  return cost::effective_mfu(cluster, s.precision, s.mesh.world(), p.step_flops,
                             time.compute + time.recompute, p.step_seconds);
}

std::vector<StepPart> parts_of(const cost::StepSeconds& t) {
  return {{"compute", t.compute},
          {"recomputation", t.recompute},
          {"tensor collectives", t.tensor},
          {"exchange of tokens", t.exchange},
          {"context collectives", t.context},
          {"messages between stages", t.messages},
          {"bubble and waiting", t.bubble},
          {"gradient reductions", t.reductions},
          {"update", t.update},
          {"copies to the host", t.offload}};
}

cost::StepSeconds time_of(const cost::Estimate& estimate, double seconds) {
  cost::StepSeconds t = estimate.time;
  const double longer = seconds - t.total();
  if (t.bubble + longer >= 0) {
    t.bubble += longer;
    return t;
  }
  t.bubble = 0;
  const auto scale = [&](std::initializer_list<double*> parts) {
    double sum = 0;
    for (const double* part : parts) sum += *part;
    const double left = sum > 0 ? std::max(0.0, 1 - (t.total() - seconds) / sum) : 1;
    for (double* part : parts) *part *= left;
  };
  scale({&t.tensor, &t.exchange, &t.context, &t.messages, &t.reductions, &t.offload});
  scale({&t.compute, &t.recompute, &t.update});
  return t;
}

std::string limits(const cost::StepSeconds& time) {
  std::vector<StepPart> parts = parts_of(time);
  std::ranges::stable_sort(
      parts, [](const StepPart& a, const StepPart& b) { return a.seconds > b.seconds; });
  std::vector<std::string> words;
  for (const StepPart& p : parts)
    if (p.seconds >= 0.01 * time.total())
      words.push_back(fmt::format("{} {}", p.name, format_percent(p.seconds / time.total())));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace piper::plan
