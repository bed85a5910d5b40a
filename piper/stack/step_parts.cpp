#include <piper/base/error.h>
#include <piper/cost/pipeline_player.h>
#include <piper/schedule/action.h>
#include <piper/stack/sums.h>
#include <piper/strategy/layout.h>

#include <algorithm>

namespace piper::stack {

using strategy::Strategy;

std::vector<char> copied_forwards(const Strategy& s, int64_t stage) {
  using schedule::Action;
  constexpr int64_t kSoon = 3;
  const std::vector<Action> actions =
      schedule::actions(s.schedule, s.mesh.pp, stage, s.num_micro_batches, s.mesh.vpp);
  std::vector<char> copied(static_cast<size_t>(s.mesh.vpp * s.num_micro_batches));
  std::vector<int64_t> forward(copied.size());
  for (int64_t i = 0; i < std::ssize(actions); ++i) {
    const Action& action = actions[static_cast<size_t>(i)];
    const auto at = static_cast<size_t>(action.chunk * s.num_micro_batches + action.micro_batch);
    if (action.kind == Action::Kind::kForward) forward[at] = i;
    if (schedule::makes_input_gradient(action.kind)) copied[at] = i > forward[at] + kSoon;
  }
  return copied;
}

const std::vector<double>& Estimator::copied_parts(const Strategy& s) {
  const CopiedKey key{s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches};
  std::vector<double>& parts = copied_[key];
  for (int64_t i = std::ssize(parts); i < s.mesh.pp; ++i) {
    const std::vector<char> copied = copied_forwards(s, i);
    parts.push_back(static_cast<double>(std::ranges::count(copied, 1)) /
                    static_cast<double>(copied.size()));
  }
  return parts;
}

cost::Moves Estimator::message(const Strategy& s, const Prices& prices) const {
  if (s.mesh.pp == 1) return {};
  cost::Moves moves =
      rates_.message(strategy::Layout(s).message_distance(), prices.ends.message_bytes);
  moves.latency += stack_.seconds_per_message;
  return moves;
}

StepParts Estimator::parts(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  const std::vector<StageSums>& sums = stage_sums(s, prices);
  StepParts parts{.ends = &prices.ends,
                  .stack = &stack_,
                  .message = message(s, prices),
                  .hidden_gradients = stack_.hidden_gradients};
  parts.message_wait = (1 - stack_.hidden_messages) * parts.message.total();
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageSums& u = sums[static_cast<size_t>(stage)];
    const double updated = updated_parameters(s, u);
    parts.stages.push_back({.bytes = stage_bytes(s, u, stage),
                            .traffic = state_traffic(s, u),
                            .dense_parameters = u.dense_parameters,
                            .expert_parameters = u.expert_parameters,
                            .update_seconds = update_seconds(updated),
                            .optimizer_copy_seconds = optimizer_copy_seconds(s, updated)});
  }
  parts.chunks.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      parts.chunks[static_cast<size_t>(chunk)] = chunk_part(s, prices, stage, chunk);
    });
  return parts;
}

ChunkPart Estimator::chunk_part(const Strategy& s, const Prices& prices, int64_t stage,
                                int64_t chunk) {
  StageSums u;
  sum_chunk(s, prices, s.recompute_of(stage), chunk, u);
  const Busy busy = busy_of(s, u);
  ChunkPart part{.has_embedding = chunk == 0,
                 .has_head = chunk + 1 == std::ssize(s.layers_per_stage),
                 .recompute = s.recompute_of(stage),
                 .weights_scale = 1 / efficiency_,
                 .kept_bytes = u.kept_bytes,
                 .copy_seconds = rates_.host_copy_seconds(u.kept_bytes)};
  for (int64_t c = 0; c < chunk; ++c)
    part.first_layer += s.layers_per_stage[static_cast<size_t>(c)];
  for (int64_t i = 0; i < s.layers_per_stage[static_cast<size_t>(chunk)]; ++i)
    part.layers.push_back(&prices.types[type_[static_cast<size_t>(part.first_layer + i)]]);
  const double backward = u.backward.compute + u.again.compute;
  if (u.forward.compute > 0)
    part.forward_scale = (busy.forward - communication(u.forward)) / u.forward.compute;
  if (backward > 0)
    part.backward_scale =
        (busy.backward - communication(u.backward) - communication(u.again)) / backward;
  return part;
}

double Estimator::played_seconds(const Strategy& s, double imbalance) {
  const Estimate e = estimate(s, imbalance);
  if (s.mesh.pp == 1) return e.seconds;
  const Prices& prices = this->prices(s, imbalance);
  const double message = this->message(s, prices).total();
  const int64_t virtual_stages = s.mesh.pp * s.mesh.vpp;
  std::vector<cost::ChunkSeconds> chunks(static_cast<size_t>(virtual_stages));
  double hideable = 0;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      StageSums sums;
      sum_chunk(s, prices, s.recompute_of(stage), chunk, sums);
      const Busy b = busy_of(s, sums);
      chunks[static_cast<size_t>(chunk)] = {.forward = b.forward,
                                            .backward_input = b.backward - b.weights,
                                            .backward_weights = b.weights,
                                            .backward = b.backward,
                                            .send_forward = message,
                                            .send_backward = message};
      hideable += b.hideable / static_cast<double>(virtual_stages);
    });
  cost::PipelinePlayer player(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches);
  const auto ranks = player.play(chunks, s.schedule == strategy::PipelineSchedule::kDualPipeV
                                             ? std::optional(hideable)
                                             : std::nullopt);
  double finish = 0;
  for (const cost::RankSeconds& rank : ranks) finish = std::max(finish, rank.finish);
  // What is not the pipeline's, and messages that the stack does not hide in the steady state.
  return finish + e.time.messages + e.time.reductions + e.time.update + e.time.offload;
}

}  // namespace piper::stack
