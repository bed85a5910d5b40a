#include <piper/cost/trainer/stage_memory.h>
#include <piper/cost/trainer/step_parts.h>

namespace piper::cost {

using strategy::Strategy;

namespace {

ChunkPart chunk_part(const TrainerContext& context, const Strategy& s, const ShapePrices& prices,
                     int64_t stage, int64_t chunk) {
  StageSums u;
  add_chunk(context, prices, s, s.recompute_of(stage), chunk, u);
  ChunkPart part{.has_embedding = chunk == 0,
                 .has_head = chunk + 1 == std::ssize(s.layers_per_stage),
                 .recompute = s.recompute_of(stage),
                 .scale = compute_scale(context, u),
                 .kept_bytes = u.kept_bytes,
                 .copy_seconds = context.rates.host_copy_seconds(u.kept_bytes)};
  for (int64_t c = 0; c < chunk; ++c)
    part.first_layer += s.layers_per_stage[static_cast<size_t>(c)];
  for (int64_t i = 0; i < s.layers_per_stage[static_cast<size_t>(chunk)]; ++i)
    part.layers.push_back(&prices.of_layer(part.first_layer + i));
  return part;
}

}  // namespace

StepParts step_parts(const TrainerContext& context, const Strategy& s, const ShapePrices& prices,
                     const StrategySums& sums, ScheduleFacts& schedules) {
  const TrainerProfile& trainer = context.trainer;
  StepParts parts{
      .ends = &prices.ends, .trainer = &trainer, .hidden_gradients = trainer.hidden_gradients};
  parts.message_wait =
      (1 - trainer.hidden_messages) * stage_messages(context, s, prices).mean.total();
  const strategy::RankLayout layout(s);
  for (int64_t rank = 0; rank < s.mesh.pp; ++rank)
    parts.messages.push_back(stage_message(context, layout, prices, rank, (rank + 1) % s.mesh.pp));
  parts.chunks.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageSums& u = sums.stages[static_cast<size_t>(stage)];
    parts.stages.push_back({.bytes = stage_bytes(context, s, sums, stage, schedules),
                            .traffic = state_traffic(context, s, u),
                            .dense_parameters = u.dense_parameters,
                            .expert_parameters = u.expert_parameters,
                            .update_seconds = update_seconds(context, s, u),
                            .optimizer_copy_seconds = optimizer_copy_seconds(context, s, u)});
    for_each_chunk(s, stage, [&](int64_t chunk) {
      parts.chunks[static_cast<size_t>(chunk)] = chunk_part(context, s, prices, stage, chunk);
    });
  }
  return parts;
}

}  // namespace piper::cost
