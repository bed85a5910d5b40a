#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/plan/prediction.h>

#include <algorithm>
#include <vector>

namespace piper::plan {
namespace {

Json time_json(const cost::StepBreakdown& time) {
  return {{"forward_seconds", time.forward},
          {"backward_seconds", time.backward},
          {"recompute_seconds", time.recompute},
          {"exchange_seconds", time.exchange},
          {"reductions_seconds", time.reductions},
          {"update_seconds", time.update},
          {"idle_seconds", time.idle}};
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

Json memory_json(const Prediction& p) {
  Json json{{"device_bytes", p.memory_bytes}, {"fullest_stage", p.estimate.fullest_stage}};
  if (!p.estimate.memory.empty()) {
    const cost::StageMemory& fullest =
        p.estimate.memory[static_cast<size_t>(p.estimate.fullest_stage)];
    json["weights_bytes"] = fullest.weights;
    json["gradients_bytes"] = fullest.gradients;
    json["optimizer_bytes"] = fullest.optimizer;
    json["activations_bytes"] = fullest.activations.total();
    json["working_bytes"] = fullest.working;
    json["messages_bytes"] = fullest.messages;
  }
  Json stages = Json::array();
  for (size_t stage = 0; stage < p.estimate.memory.size(); ++stage)
    stages.push_back(stage_json(stage, p.estimate.memory[stage]));
  json["stages"] = stages;
  return json;
}

}  // namespace

const char* name(Method method) {
  switch (method) {
    case Method::kClosedForm:
      return "closed form";
    case Method::kSimulation:
      return "simulation";
  }
  return "?";
}

Prediction make_prediction(const model::Model& model, const cluster::Cluster& cluster,
                           const strategy::Strategy& strategy, const cost::StepEstimate& estimate,
                           double simulated_seconds) {
  Prediction p;
  p.estimate = estimate;
  p.closed_form_seconds = estimate.seconds;
  p.method = simulated_seconds >= 0 ? Method::kSimulation : Method::kClosedForm;
  p.step_seconds = simulated_seconds >= 0 ? simulated_seconds : estimate.seconds;
  // What the simulation finds longer or shorter is waiting.
  cost::StepBreakdown& time = p.estimate.time;
  time.idle = std::max(0.0, time.idle + p.step_seconds - estimate.seconds);
  p.peak_bytes = estimate.peak_bytes;
  p.memory_bytes = cluster.memory_bytes;
  p.step_flops = cost::step_flops(model, strategy.sequence, strategy.global_batch_sequences,
                                  cost::kept_part(model, strategy));
  p.peak_flops_per_second =
      cost::peak_flops_per_second(cluster, strategy.precision, strategy.mesh.world());
  p.mfu = p.step_flops / (p.step_seconds * p.peak_flops_per_second);
  p.tokens_per_second =
      static_cast<double>(strategy.sequence * strategy.global_batch_sequences) / p.step_seconds;
  p.effective =
      cost::effective_mfu(cluster, strategy.precision, strategy.mesh.world(), p.step_flops,
                          time.forward + time.backward + time.recompute, p.step_seconds);
  return p;
}

Json to_json(const Prediction& p) {
  return {{"mfu", p.mfu},
          {"step_seconds", p.step_seconds},
          {"peak_bytes", p.peak_bytes},
          {"mfu_formula", cost::kMfuFormula},
          {"peak_flops_per_second", p.peak_flops_per_second},
          {"tokens_per_second", p.tokens_per_second},
          {"step_flops", p.step_flops},
          {"method", name(p.method)},
          {"closed_form_seconds", p.closed_form_seconds},
          {"time", time_json(p.estimate.time)},
          {"memory", memory_json(p)},
          {"mfu_effective",
           {{"mfu", p.effective.mfu()},
            {"hardware_efficiency", p.effective.hardware_efficiency},
            {"compute_fraction", p.effective.compute_fraction},
            {"effective_peak_flops_per_second", p.effective.effective_peak_flops_per_second}}}};
}

std::string limits(const Prediction& p) {
  const cost::StepBreakdown& time = p.estimate.time;
  std::vector<std::pair<double, std::string>> parts = {{time.idle, "pipeline bubble and waiting"},
                                                       {time.exchange, "exchange of tokens"},
                                                       {time.recompute, "recomputation"},
                                                       {time.reductions, "gradient reductions"},
                                                       {time.update, "update"}};
  std::ranges::sort(parts, [](const auto& a, const auto& b) { return a.first > b.first; });
  const double total = time.total();
  if (total <= 0) return "";
  std::string text =
      fmt::format("compute {}", format_percent((time.forward + time.backward) / total));
  for (const auto& [seconds, what] : parts)
    if (seconds / total >= 0.01)
      text += fmt::format(", {} {}", what, format_percent(seconds / total));
  return text + " of the step on the busiest stage";
}

}  // namespace piper::plan
