#include <piper/base/error.h>
#include <piper/schedule/layer_kind.h>
#include <piper/schedule/stage.h>
#include <piper/schedule/step.h>
#include <piper/schedule/writer.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

namespace piper::schedule {

StepGraph write_step(const model::Model& model, const strategy::Strategy& strategy,
                     const std::vector<Rank>& ranks, const ExecutionStyle& style) {
  const auto problems = strategy::contradictions(strategy, model);
  PIPER_CHECK(problems.empty(), problems.front().text);
  std::vector<Rank> written = ranks;
  if (written.empty()) written = strategy::RankLayout(strategy).world();
  std::sort(written.begin(), written.end());
  written.erase(std::unique(written.begin(), written.end()), written.end());
  StepWriter writer(model, strategy, style);
  for (const Rank rank : written) write_rank(writer, rank);
  return writer.take();
}

// Where everything is computed again, a forward keeps nothing but the inputs of layers.
StepGraph write_evaluation(const model::Model& model, const strategy::Strategy& strategy) {
  strategy::Strategy forwards = strategy;
  forwards.recompute = strategy::Recompute::kFull;
  forwards.recompute_per_stage.clear();
  forwards.offload = strategy::Offload::kNone;
  ExecutionStyle style;
  style.evaluates = true;
  style.has_mtp_modules = false;
  return write_step(model, forwards, {}, style);
}

double num_tasks(const model::Model& model, const strategy::Strategy& strategy, int64_t num_ranks,
                 const ExecutionStyle& style) {
  double of_layers = 0;
  for (const model::Layer& layer : model.layers) {
    const LayerPasses& passes =
        layer_passes(layer_kind(layer, strategy, style), strategy.recompute);
    of_layers += static_cast<double>(passes.forward.size() + passes.recompute.size() +
                                     passes.backward.size());
    if (strategy::splits_backward(strategy.schedule)) of_layers += 2;
    if (strategy.zero == 3) of_layers += 8;
  }
  constexpr double kOfChunk = 8;  // ends, sends and receives
  const double of_micro_batch = of_layers / static_cast<double>(strategy.mesh.pp) +
                                kOfChunk * static_cast<double>(strategy.mesh.vpp);
  return static_cast<double>(num_ranks) * static_cast<double>(strategy.num_micro_batches) *
         of_micro_batch;
}

}  // namespace piper::schedule
