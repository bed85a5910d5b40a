#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/trainer/shape_prices.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>

namespace piper::cost {

using strategy::Strategy;

void require_priced(const Strategy& s, const TrainerProfile& trainer,
                    const cluster::Cluster& cluster) {
  if (s.redundant_experts > 0)
    throw InvalidInput(fmt::format(
        "'redundant_experts' is {}: copies of experts have a price where piper runs on a machine "
        "that piper profile has measured, not by the profile of trainer {} on {}; allowed: 0",
        s.redundant_experts, trainer.name, cluster.name));
  if (strategy::compresses_experts(s) && !trainer.schedules_mixtures)
    throw InvalidInput(
        fmt::format("'expert_compression' is {}: trainer {} sends experts' weights whole; allowed: "
                    "1, or trainer piper",
                    s.expert_compression, trainer.name));
  if (s.capacity.pads && trainer.deduplicates_rows)
    throw InvalidInput(
        fmt::format("'pad_to_capacity' is given: trainer {} sends a row for several experts of a "
                    "node once, where "
                    "there is no room for rows of padding; allowed: without it, or another trainer",
                    trainer.name));
  if (s.context_exchange == strategy::ContextExchange::kGather)
    throw InvalidInput(fmt::format(
        "'context_exchange' is gather: it has a price where piper runs on a machine that piper "
        "profile has measured, not by the profile of trainer {} on {}; allowed: ring",
        trainer.name, cluster.name));
  if (s.reduction_start != strategy::ReductionStart::kReady)
    throw InvalidInput(fmt::format(
        "'reduction_start' is {}: it has a price where piper runs on a machine that piper profile "
        "has measured, not by the profile of trainer {} on {}; allowed: ready",
        strategy::name(s.reduction_start), trainer.name, cluster.name));
  if (trainer.schedules_mixtures || s.moe_schedule == strategy::MoeSchedule::kPlain) return;
  throw InvalidInput(
      fmt::format("'moe_schedule' is {}: trainer {} does not run it; allowed: plain, or the "
                  "trainer piper",
                  strategy::name(s.moe_schedule), trainer.name));
}

const PairSaving& ShapePrices::saved_in_pairs(const LayerPrice& of_type,
                                              strategy::Recompute recompute) const {
  const auto [found, is_new] = saved_in_pairs_.try_emplace({&of_type, recompute});
  if (is_new) {
    const double scale = 1 / context->efficiency;
    found->second =
        cost::saved_in_pairs(of_type, needs,
                             pair_compute(of_type, recompute, context->trainer,
                                          {.forward = scale, .backward = scale, .weights = scale}));
  }
  return found->second;
}

ShapePricer::ShapePricer(const TrainerContext& context) : context_(context) {
  const model::Model& model = context.model;
  LayerTypes& types = layer_types_;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const model::Layer& l = model.layers[static_cast<size_t>(layer)];
    size_t type = 0;
    while (type < types.representative.size() &&
           !(model.layers[static_cast<size_t>(types.representative[type])] == l))
      ++type;
    if (type == types.representative.size()) {
      types.representative.push_back(layer);
      types.num_layers.push_back(0);
    }
    ++types.num_layers[type];
    types.has_shared |= l.feed_forward.is_moe() && l.feed_forward.has_shared();
    types.of_layer.push_back(type);
  }
}

void ShapePricer::clear() {
  known_.clear();
  last_ = nullptr;
}

const ShapePrices& ShapePricer::of(const Strategy& s, double imbalance) {
  require_priced(s, context_.trainer, context_.cluster);
  // No expert takes more than its capacity, however many choose it.
  imbalance = s.capacity.limited(imbalance);
  const int64_t chunks = strategy::num_moe_chunks(s);
  // What runs beside exchanges may then be less.
  const bool splits = context_.trainer.schedules_mixtures &&
                      strategy::splits_backward(s.schedule) &&
                      (chunks > 1 || layer_types_.has_shared);
  const Key key{s.mesh.world(),
                s.micro_batch_sequences,
                s.mesh.tp,
                s.mesh.cp,
                s.mesh.ep,
                s.mesh.etp,
                s.sequence_parallel,
                splits,
                s.moe_schedule,
                chunks,
                s.capacity.balanced_part(),
                imbalance,
                s.all_to_all,
                s.all_to_all_chunk_bytes};
  if (last_ != nullptr && key == last_key_) return *last_;
  std::unique_ptr<ShapePrices>& found = known_[key];
  if (!found)
    found = std::make_unique<ShapePrices>(
        price({.tokens = static_cast<double>(s.micro_batch_sequences * context_.sequence) /
                         static_cast<double>(s.mesh.cp),
               .sequence = static_cast<double>(context_.sequence),
               .tp = s.mesh.tp,
               .cp = s.mesh.cp,
               .ep = s.mesh.ep,
               .etp = s.mesh.etp,
               .sequence_parallel = s.sequence_parallel,
               .moe_schedule = s.moe_schedule,
               .moe_chunks = chunks,
               .compute_efficiency = context_.efficiency,
               .splits_backward = splits,
               .rows_of_copy = s.capacity.balanced_part(),
               .imbalance = imbalance,
               .exchange = all_to_all_of(s)},
              s.mesh.world()));
  last_key_ = key;
  last_ = found.get();
  return *last_;
}

ShapePrices ShapePricer::price(const LayerShape& shape, int64_t num_ranks) const {
  const Rates rates = context_.rates.among(num_ranks);
  ShapePrices prices;
  prices.context = &context_;
  prices.layer_types = &layer_types_;
  for (const int64_t layer : layer_types_.representative)
    prices.types.push_back(price_layer(context_.model,
                                       context_.model.layers[static_cast<size_t>(layer)], shape,
                                       context_.trainer, rates, context_.precision));
  prices.ends = price_ends(context_.model, shape, context_.trainer, rates);
  prices.needs = {.tensor = rates.ring_needs(shape.tp, 1),
                  .context = rates.ring_needs(shape.cp, shape.tp),
                  .expert_tensor = rates.ring_needs(shape.etp, 1)};
  return prices;
}

StageMessage stage_message(const TrainerContext& context, const strategy::RankLayout& layout,
                           const ShapePrices& prices, int64_t rank, int64_t other) {
  const size_t level = context.rates.level_between(layout, rank, other);
  StageMessage message{context.rates.message(level, prices.ends.message_bytes), level};
  message.moves.latency += context.trainer.seconds_per_message;
  return message;
}

StageMessages stage_messages(const TrainerContext& context, const Strategy& s,
                             const ShapePrices& prices) {
  const int64_t pp = s.mesh.pp;
  if (pp == 1) return {};
  const strategy::RankLayout layout(s);
  StageMessages messages;
  double count = 0;
  const auto add = [&](int64_t rank, int64_t other, int64_t times) {
    const CommTime moves = stage_message(context, layout, prices, rank, other).moves;
    messages.mean.latency += moves.latency * static_cast<double>(times);
    messages.mean.transfer += moves.transfer * static_cast<double>(times);
    count += static_cast<double>(times);
    if (moves.transfer >= messages.longest.transfer) messages.longest = moves;
  };
  for (int64_t rank = 0; rank + 1 < pp; ++rank) add(rank, rank + 1, s.mesh.vpp);
  // In a V the next chunk lies on the rank where the last one ended.
  if (s.mesh.vpp > 1 && !strategy::is_v(s.schedule)) add(pp - 1, 0, s.mesh.vpp - 1);
  messages.mean.latency /= count;
  messages.mean.transfer /= count;
  return messages;
}

}  // namespace piper::cost
