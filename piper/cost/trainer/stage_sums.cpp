#include <piper/cost/trainer/stage_sums.h>

#include <algorithm>

namespace piper::cost {

using strategy::Recompute;
using strategy::Strategy;

namespace {

void add(PassPrice& to, const PassPrice& what, double times) {
  to.compute += what.compute * times;
  to.tensor += what.tensor * times;
  to.exchange += what.exchange * times;
  to.context += what.context * times;
}

}  // namespace

BusySeconds busy_seconds(const TrainerContext& context, const StageSums& u) {
  const auto slow = [&](double compute, double least) {
    return std::max(
        compute / context.efficiency + least * context.trainer.serial_seconds_per_layer * u.layers,
        least * u.host_seconds);
  };
  return {.forward = slow(u.forward.compute, 1.0 / 3) + communication(u.forward),
          .backward = slow(u.backward.compute + u.again.compute, 2.0 / 3) +
                      communication(u.backward) + communication(u.again),
          .weights = u.weights / context.efficiency,
          .hideable = u.hideable};
}

ComputeScale compute_scale(const TrainerContext& context, const StageSums& u) {
  const BusySeconds busy = busy_seconds(context, u);
  ComputeScale scale{.weights = 1 / context.efficiency};
  const double backward = u.backward.compute + u.again.compute;
  if (u.forward.compute > 0)
    scale.forward = (busy.forward - communication(u.forward)) / u.forward.compute;
  if (backward > 0)
    scale.backward =
        (busy.backward - communication(u.backward) - communication(u.again)) / backward;
  return scale;
}

void add_chunk(const TrainerContext& context, const ShapePrices& prices, const Strategy& s,
               Recompute recompute, int64_t chunk, StageSums& sums) {
  const TrainerProfile& trainer = context.trainer;
  const std::vector<size_t>& type_of_layer = prices.layer_types->of_layer;
  int64_t first = 0;
  for (int64_t c = 0; c < chunk; ++c) first += s.layers_per_stage[static_cast<size_t>(c)];
  const int64_t end = first + s.layers_per_stage[static_cast<size_t>(chunk)];
  double pair_ends = 0;
  for (int64_t layer = first; layer < end;) {
    const size_t type = type_of_layer[static_cast<size_t>(layer)];
    int64_t next = layer + 1;
    while (next < end && type_of_layer[static_cast<size_t>(next)] == type) ++next;
    const auto count = static_cast<double>(next - layer);
    const LayerPrice& p = prices.types[type];
    add(sums.forward, p.forward, count);
    add(sums.backward, p.backward, count);
    add(sums.again, p.again(recompute, trainer), recompute == Recompute::kNone ? 0 : count);
    sums.weights += p.backward_weights * count;
    const double kept = p.kept_bytes(recompute, trainer);
    const double dropped = p.kept_bytes(Recompute::kNone, trainer) - kept;
    sums.kept_bytes += kept * count;
    sums.dropped_bytes += dropped * count;
    // Recomputed pieces are whole for the moment of their backward.
    sums.backward_bytes = std::max(sums.backward_bytes, p.backward_bytes + dropped);
    sums.placeholder_bytes = std::max(sums.placeholder_bytes, p.placeholder_bytes);
    sums.exchange_bytes = std::max(sums.exchange_bytes, p.exchange_bytes);
    sums.dense_parameters += p.dense_parameters * count;
    sums.expert_parameters += p.expert_parameters * count;
    sums.layers += count;
    sums.host_seconds += p.host_seconds * count;
    if (strategy::pairs(s.schedule)) {
      const PairSaving& saved = prices.saved_in_pairs(p, recompute);
      sums.hideable += count * saved.layer;
      pair_ends = std::max(pair_ends, saved.ends);
    }
    layer = next;
  }
  sums.hideable -= pair_ends;
  const EndPrice& ends = prices.ends;
  if (chunk == 0) {
    sums.forward.compute += ends.embedding_forward;
    sums.backward.compute += ends.embedding_backward;
    sums.weights += ends.embedding_backward;
    sums.dense_parameters += ends.embedding_parameters;
  }
  if (chunk + 1 != s.mesh.num_virtual_stages()) return;
  sums.forward.compute += ends.head_forward;
  sums.backward.compute += ends.head_backward;
  sums.head_bytes = ends.head_bytes;
  sums.head_placeholder_bytes = ends.placeholder_bytes;
  sums.dense_parameters += ends.head_parameters;
  if (context.model.tied_embeddings && chunk != 0) sums.dense_parameters += ends.table_parameters;
}

const StrategySums& SumsOfStages::of(const Strategy& s, const ShapePrices& prices) {
  const bool is_v = strategy::is_v(s.schedule), pairs = strategy::pairs(s.schedule);
  if (prices_ == &prices && is_v_ == is_v && pairs_ == pairs && recompute_ == s.recompute &&
      recompute_per_stage_ == s.recompute_per_stage && split_ == s.layers_per_stage &&
      vpp_ == s.mesh.vpp)
    return sums_;
  prices_ = &prices;
  is_v_ = is_v;
  pairs_ = pairs;
  vpp_ = s.mesh.vpp;
  recompute_ = s.recompute;
  recompute_per_stage_ = s.recompute_per_stage;
  split_ = s.layers_per_stage;
  chunks_.clear();
  ++sums_.number;
  sums_.stages.assign(static_cast<size_t>(s.mesh.pp), {});
  sums_.of_chunk.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    StageSums& sums = sums_.stages[static_cast<size_t>(stage)];
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const double kept = sums.kept_bytes, dropped = sums.dropped_bytes;
      add_chunk(context_, prices, s, s.recompute_of(stage), chunk, sums);
      sums_.of_chunk[static_cast<size_t>(chunk)] = {.kept = sums.kept_bytes - kept,
                                                    .dropped = sums.dropped_bytes - dropped};
    });
  }
  return sums_;
}

const std::vector<StageSums>& SumsOfStages::of_chunks(const Strategy& s,
                                                      const ShapePrices& prices) {
  of(s, prices);
  if (!chunks_.empty()) return chunks_;
  chunks_.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    for_each_chunk(s, stage, [&](int64_t chunk) {
      add_chunk(context_, prices, s, s.recompute_of(stage), chunk,
                chunks_[static_cast<size_t>(chunk)]);
    });
  return chunks_;
}

}  // namespace piper::cost
