#include <piper/base/error.h>
#include <piper/cost/trainer/sums.h>
#include <piper/schedule/action.h>
#include <piper/schedule/host_copies.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

namespace piper::cost {

using strategy::Strategy;

const std::vector<TrainerEstimator::ListFacts>& TrainerEstimator::facts(const Strategy& s,
                                                                        int64_t m) {
  const ListKey key{s.schedule, s.mesh.pp, s.mesh.vpp, m};
  if (last_facts_ != nullptr && key == last_facts_key_) return *last_facts_;
  std::vector<ListFacts>& known = facts_[key];
  last_facts_key_ = key;
  last_facts_ = &known;
  const int64_t vpp = s.mesh.vpp;
  for (int64_t i = std::ssize(known); i < s.mesh.pp; ++i) {
    const schedule::HostCopies copies = schedule::host_copies(s.schedule, s.mesh.pp, vpp, m, i);
    const std::vector<schedule::Action> list = schedule::actions(s.schedule, s.mesh.pp, i, m, vpp);
    const auto pairs = std::ranges::count(list, true, &schedule::Action::pairs_with_next);
    ListFacts here{.paired = static_cast<double>(pairs) / static_cast<double>(m * vpp),
                   .whole = {},
                   .copied = {},
                   .held = static_cast<double>(copies.most_held) / static_cast<double>(vpp)};
    for (int64_t chunk = 0; chunk < vpp; ++chunk) {
      const auto whole = std::ranges::count_if(list, [&](const schedule::Action& a) {
        return a.chunk == chunk && a.kind == schedule::Action::Kind::kBackward;
      });
      here.whole.push_back(static_cast<double>(whole) / static_cast<double>(m));
      here.copied.push_back(std::count(copies.is_copied.begin() + chunk * m,
                                       copies.is_copied.begin() + (chunk + 1) * m, 1));
    }
    known.push_back(std::move(here));
  }
  return known;
}

CommTime TrainerEstimator::message(const Strategy& s, const Prices& prices) const {
  if (s.mesh.pp == 1) return {};
  CommTime moves = rates_.message(strategy::RankLayout(s).distance(strategy::Axis::kPipeline),
                                  prices.ends.message_bytes);
  moves.latency += trainer_.seconds_per_message;
  return moves;
}

StepParts TrainerEstimator::parts(const Strategy& s, double imbalance) {
  const Prices& prices = this->prices(s, imbalance);
  const std::vector<StageSums>& sums = stage_sums(s, prices);
  StepParts parts{.ends = &prices.ends,
                  .trainer = &trainer_,
                  .message = message(s, prices),
                  .hidden_gradients = trainer_.hidden_gradients};
  parts.message_wait = (1 - trainer_.hidden_messages) * parts.message.total();
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageSums& u = sums[static_cast<size_t>(stage)];
    const double updated = updated_parameters(s, u);
    parts.stages.push_back({.bytes = stage_bytes(s, u, stage),
                            .traffic = state_traffic(s, u),
                            .dense_parameters = u.dense_parameters,
                            .expert_parameters = u.expert_parameters,
                            .update_seconds = update_seconds(s, u),
                            .optimizer_copy_seconds = optimizer_copy_seconds(s, updated)});
  }
  parts.chunks.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      parts.chunks[static_cast<size_t>(chunk)] = chunk_part(s, prices, stage, chunk);
    });
  return parts;
}

ChunkPart TrainerEstimator::chunk_part(const Strategy& s, const Prices& prices, int64_t stage,
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

}  // namespace piper::cost
