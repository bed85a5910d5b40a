#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/bubble.h>
#include <piper/cost/trainer/sums.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/count.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <cmath>

namespace piper::cost {

using strategy::PipelineSchedule;
using strategy::Recompute;
using strategy::Strategy;

namespace {

void add(PassPrice& to, const PassPrice& what, double times = 1) {
  to.compute += what.compute * times;
  to.tensor += what.tensor * times;
  to.exchange += what.exchange * times;
  to.context += what.context * times;
}

}  // namespace

TrainerEstimator::TrainerEstimator(const model::Model& model, const cluster::Cluster& cluster,
                                   const TrainerProfile& trainer, strategy::Precision precision,
                                   int64_t sequence)
    : model_(model),
      cluster_(cluster),
      trainer_(trainer),
      precision_(precision),
      sequence_(sequence),
      rates_(cluster, precision),
      efficiency_(trainer.calibration_of(cluster.device).compute_efficiency),
      sums_(std::make_unique<Sums>()),
      busy_(std::make_unique<std::vector<Busy>>()) {
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const model::Layer& l = model.layers[static_cast<size_t>(layer)];
    size_t type = 0;
    while (type < representative_.size() &&
           !(model.layers[static_cast<size_t>(representative_[type])] == l))
      ++type;
    if (type == representative_.size()) {
      representative_.push_back(layer);
      layers_of_type_.push_back(0);
    }
    ++layers_of_type_[type];
    has_shared_ |= l.feed_forward.is_moe() && l.feed_forward.has_shared();
    type_.push_back(type);
  }
}

TrainerEstimator::~TrainerEstimator() = default;

void TrainerEstimator::set_compute_efficiency(double efficiency) {
  efficiency_ = efficiency;
  known_.clear();
  last_ = nullptr;
  *sums_ = {};
}

void TrainerEstimator::require_priced(const Strategy& s) const {
  if (s.redundant_experts > 0)
    throw InvalidInput(fmt::format(
        "'redundant_experts' is {}: copies of experts have a price where piper runs on a machine "
        "that piper profile has measured, not by the profile of trainer {} on {}; allowed: 0",
        s.redundant_experts, trainer_.name, cluster_.name));
  if (s.context_exchange == strategy::ContextExchange::kGather)
    throw InvalidInput(fmt::format(
        "'context_exchange' is gather: it has a price where piper runs on a machine that piper "
        "profile has measured, not by the profile of trainer {} on {}; allowed: ring",
        trainer_.name, cluster_.name));
  if (s.reduction_start != strategy::ReductionStart::kReady)
    throw InvalidInput(fmt::format(
        "'reduction_start' is {}: it has a price where piper runs on a machine that piper profile "
        "has measured, not by the profile of trainer {} on {}; allowed: ready",
        strategy::name(s.reduction_start), trainer_.name, cluster_.name));
  if (trainer_.schedules_mixtures || s.moe_schedule == strategy::MoeSchedule::kPlain) return;
  throw InvalidInput(
      fmt::format("'moe_schedule' is {}: trainer {} does not run it; allowed: plain, or the "
                  "trainer piper",
                  strategy::name(s.moe_schedule), trainer_.name));
}

const TrainerEstimator::Prices& TrainerEstimator::prices(const Strategy& s, double imbalance) {
  require_priced(s);
  // No expert takes more than its capacity, however many choose it.
  if (s.capacity.is_limited()) imbalance = std::min(imbalance, std::max(1.0, s.capacity.factor));
  const int64_t chunks = strategy::num_moe_chunks(s);
  // What runs beside exchanges may then be less.
  const bool splits = trainer_.schedules_mixtures && strategy::splits_backward(s.schedule) &&
                      (chunks > 1 || has_shared_);
  const Key key{s.micro_batch_sequences,
                s.mesh.tp,
                s.mesh.cp,
                s.mesh.ep,
                s.mesh.etp,
                s.sequence_parallel,
                splits,
                s.moe_schedule,
                chunks,
                s.capacity.factor,
                imbalance,
                s.all_to_all,
                s.all_to_all_chunk_bytes};
  if (last_ != nullptr && key == last_key_) return *last_;
  std::unique_ptr<Prices>& found = known_[key];
  if (!found) {
    found = std::make_unique<Prices>();
    const LayerShape shape{.tokens = static_cast<double>(s.micro_batch_sequences * sequence_) /
                                     static_cast<double>(s.mesh.cp),
                           .sequence = static_cast<double>(sequence_),
                           .tp = s.mesh.tp,
                           .cp = s.mesh.cp,
                           .ep = s.mesh.ep,
                           .etp = s.mesh.etp,
                           .sequence_parallel = s.sequence_parallel,
                           .moe_schedule = s.moe_schedule,
                           .moe_chunks = chunks,
                           .compute_efficiency = efficiency_,
                           .splits_backward = splits,
                           .capacity_factor = s.capacity.factor,
                           .imbalance = imbalance,
                           .exchange = form_of(s)};
    for (const int64_t layer : representative_)
      found->types.push_back(price_layer(model_, model_.layers[static_cast<size_t>(layer)], shape,
                                         trainer_, rates_, precision_));
    found->ends = price_ends(model_, shape, trainer_, rates_);
    found->needs = {.tensor = rates_.ring_needs(shape.tp, 1),
                    .context = rates_.ring_needs(shape.cp, shape.tp),
                    .expert_tensor = rates_.ring_needs(shape.etp, 1)};
    fill_pairs(*found);
  }
  last_key_ = key;
  last_ = found.get();
  return *last_;
}

void TrainerEstimator::sum_stage(const Strategy& s, const Prices& prices, int64_t stage,
                                 StageSums& sums) {
  for_each_chunk(s, stage, [&](int64_t chunk) {
    const double kept = sums.kept_bytes, dropped = sums.dropped_bytes;
    sum_chunk(s, prices, s.recompute_of(stage), chunk, sums);
    sums_->of_chunk[static_cast<size_t>(chunk)] = {.kept = sums.kept_bytes - kept,
                                                   .dropped = sums.dropped_bytes - dropped};
  });
}

void TrainerEstimator::sum_chunk(const Strategy& s, const Prices& prices, Recompute recompute,
                                 int64_t chunk, StageSums& sums) {
  const int64_t last_chunk = s.mesh.num_virtual_stages() - 1;

  int64_t first = 0;
  for (int64_t c = 0; c < chunk; ++c) first += s.layers_per_stage[static_cast<size_t>(c)];
  const int64_t end = first + s.layers_per_stage[static_cast<size_t>(chunk)];
  double pair_ends = 0;
  for (int64_t layer = first; layer < end;) {
    const size_t type = type_[static_cast<size_t>(layer)];
    int64_t next = layer + 1;
    while (next < end && type_[static_cast<size_t>(next)] == type) ++next;
    const auto count = static_cast<double>(next - layer);
    const LayerPrice& p = prices.types[type];
    add(sums.forward, p.forward, count);
    add(sums.backward, p.backward, count);
    add(sums.again, p.again(recompute, trainer_), recompute == Recompute::kNone ? 0 : count);
    sums.weights += p.backward_weights * count;
    const double kept = p.kept_bytes(recompute, trainer_);
    const double dropped = p.kept_bytes(Recompute::kNone, trainer_) - kept;
    sums.kept_bytes += kept * count;
    sums.dropped_bytes += dropped * count;
    sums.input_bytes += p.input_bytes * count;
    // Recomputed pieces are whole for the moment of their backward.
    sums.backward_bytes = std::max(sums.backward_bytes, p.backward_bytes + dropped);
    sums.placeholder_bytes = std::max(sums.placeholder_bytes, p.placeholder_bytes);
    sums.exchange_bytes = std::max(sums.exchange_bytes, p.exchange_bytes);
    sums.dense_parameters += p.dense_parameters * count;
    sums.expert_parameters += p.expert_parameters * count;
    sums.layers += count;
    sums.host_seconds += p.host_seconds * count;
    sums.hideable += count * prices.pairs_save[type].layer;
    pair_ends = std::max(pair_ends, prices.pairs_save[type].ends);
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
  if (chunk != last_chunk) return;
  sums.forward.compute += ends.head_forward;
  sums.backward.compute += ends.head_backward;
  sums.head_bytes = ends.head_bytes;
  sums.head_placeholder_bytes = ends.placeholder_bytes;
  sums.dense_parameters += ends.head_parameters;
  if (model_.tied_embeddings && chunk != 0) sums.dense_parameters += ends.embedding_parameters;
}

void TrainerEstimator::fill_pairs(Prices& prices) const {
  prices.pairs_save.clear();
  for (const LayerPrice& p : prices.types)
    prices.pairs_save.push_back(saved_in_pairs(p, prices.needs, efficiency_));
}

const std::vector<std::vector<ChunksHeld>>& TrainerEstimator::held(const Strategy& s) {
  const HeldKey key{{s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches},
                    strategy::pairs_take_turns(s),
                    keeps_recomputed(s)};
  if (last_held_ != nullptr && last_held_key_ == key) return *last_held_;
  std::vector<std::vector<ChunksHeld>>& known = held_[key];
  last_held_key_ = key;
  last_held_ = &known;
  const auto [list, takes_turns, recomputes] = key;
  for (int64_t rank = std::ssize(known); rank < s.mesh.pp; ++rank)
    known.push_back(chunks_held(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, rank,
                                takes_turns, recomputes));
  return known;
}

double TrainerEstimator::activation_bytes(const Strategy& s, const StageSums& sums, int64_t stage) {
  const bool is_offloaded = strategy::offloads_activations(s.offload);
  const double on_device =
      is_offloaded ? sums.kept_bytes * facts(s)[static_cast<size_t>(stage)].held : 0;
  if (!keeps_recomputed(s)) {
    if (is_offloaded) return on_device;
    if (s.mesh.vpp == 1 && !strategy::pairs_take_turns(s))
      return sums.kept_bytes * static_cast<double>(chunk_forwards_in_flight(
                                   s.schedule, s.mesh.pp, 1, stage, s.num_micro_batches));
  }
  const double layers = std::max(1.0, sums.layers);
  double most = 0, most_again = 0;
  for (const ChunksHeld& moment : held(s)[static_cast<size_t>(stage)]) {
    double kept = moment.is_in_pair ? sums.kept_bytes / layers : 0;
    double again = moment.is_in_pair ? sums.dropped_bytes / layers : 0;
    if (moment.ends_input_part) again -= sums.dropped_bytes / layers;  // in `working`
    size_t i = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const ChunkBytes& of = sums_->of_chunk[static_cast<size_t>(chunk)];
      kept += static_cast<double>(moment.forwards[i]) * of.kept;
      again += static_cast<double>(moment.waiting[i++]) * of.dropped;
    });
    most_again = std::max(most_again, again);
    most = std::max(most, kept + again);
  }
  return is_offloaded ? on_device + most_again : most;
}

// Of equal stages from cost/bubble.h; stages that differ idle by what the others do instead of p -
// 1 means.
double TrainerEstimator::bubble_of(const Strategy& s, const std::vector<Busy>& stages,
                                   size_t busiest, double message) {
  if (s.mesh.pp == 1) return 0;
  Busy mean;
  double others = 0;
  const auto p = static_cast<double>(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    mean.forward += stages[i].forward / p;
    mean.backward += stages[i].backward / p;
    mean.weights += stages[i].weights / p;
    if (i != busiest) others += stages[i].total();
  }
  const RankPassSeconds pass{.forward = mean.forward,
                             .backward_input = mean.backward - mean.weights,
                             .backward_weights = mean.weights};
  const double equal =
      bubble_seconds(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, pass, message);
  return mean.total() > 0 ? equal * others / ((p - 1) * mean.total()) : equal;
}

TrainerEstimator::Busy TrainerEstimator::busy_of(const Strategy& s, const StageSums& u) const {
  const auto slow = [&](double compute, double least) {
    return std::max(compute / efficiency_ + least * trainer_.serial_seconds_per_layer * u.layers,
                    least * u.host_seconds);
  };
  Busy b;
  b.forward = slow(u.forward.compute, 1.0 / 3) + communication(u.forward);
  b.backward = slow(u.backward.compute + u.again.compute, 2.0 / 3) + communication(u.backward) +
               communication(u.again);
  b.weights = u.weights / efficiency_;
  if (strategy::pairs(s.schedule)) {
    b.hideable = u.hideable;
  }
  return b;
}

// Neighbours in a search share everything but schedule, ZeRO, offload and placement: the sums of
// the last call are kept.
const std::vector<TrainerEstimator::StageSums>& TrainerEstimator::stage_sums(const Strategy& s,
                                                                             const Prices& prices) {
  Sums& last = *sums_;
  const bool is_v = strategy::is_v(s.schedule);
  if (last.prices == &prices && last.is_v == is_v && last.recompute == s.recompute &&
      last.recompute_per_stage == s.recompute_per_stage && last.split == s.layers_per_stage &&
      last.vpp == s.mesh.vpp)
    return last.stages;
  last = {.prices = &prices,
          .is_v = is_v,
          .vpp = s.mesh.vpp,
          .recompute = s.recompute,
          .recompute_per_stage = s.recompute_per_stage,
          .split = s.layers_per_stage,
          .stages = std::move(last.stages),
          .of_chunk = std::move(last.of_chunk)};
  last.stages.assign(static_cast<size_t>(s.mesh.pp), {});
  last.of_chunk.resize(s.layers_per_stage.size());
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    sum_stage(s, prices, stage, last.stages[static_cast<size_t>(stage)]);
  return last.stages;
}

// Where a V turns, a rank's second chunk follows its first at once: weights may come in later than
// forwards.
bool TrainerEstimator::awaits_weights(const Strategy& s, const StageSums& sums, int64_t stage,
                                      const StageOverlap& like) const {
  if (!strategy::is_v(s.schedule) || stage + 1 < s.mesh.pp || like.gathered <= 0) return false;
  return like.gathered > static_cast<double>(s.mesh.pp) / 2 * busy_of(s, sums).forward;
}

const std::vector<StageOverlap>& TrainerEstimator::overlaps(const Strategy& s, const Prices& prices,
                                                            const std::vector<StageSums>& sums) {
  const Sums::OverlapKey key{s.mesh.dp, s.num_micro_batches, s.zero, s.placement, s.schedule};
  for (const auto& [known, found] : sums_->overlaps)
    if (known == key) return found;
  std::vector<StageOverlap> stages;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const auto i = static_cast<size_t>(stage);
    const bool repeats = stage > 1 && sums[i].same_as(sums[i - 1]) &&
                         s.layers_per_stage[i] == s.layers_per_stage[i - 1] &&
                         s.recompute_of(stage) == s.recompute_of(stage - 1) &&
                         !awaits_weights(s, sums[i], stage, stages.back());
    stages.push_back(repeats ? stages.back() : stage_overlap(s, prices, sums[i], stage));
  }
  return sums_->overlaps.emplace_back(key, std::move(stages)).second;
}

Estimate TrainerEstimator::bytes(const Strategy& s, double imbalance) {
  return bytes_of(s, stage_sums(s, prices(s, imbalance)));
}

Estimate TrainerEstimator::bytes_of(const Strategy& s, const std::vector<StageSums>& sums) {
  Estimate e;
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
    const StageBytes bytes = stage_bytes(s, sums[static_cast<size_t>(stage)], stage);
    if (bytes.total() > e.fullest.total()) {
      e.fullest = bytes;
      e.fullest_stage = stage;
    }
    e.states_bytes = std::max(e.states_bytes, bytes.weights_and_gradients + bytes.optimizer);
  }
  e.peak_bytes = e.fullest.total();
  return e;
}

Estimate TrainerEstimator::estimate(const Strategy& s, double imbalance,
                                    double give_up_above_seconds, double most_bytes) {
  PIPER_DCHECK(s.sequence == sequence_ && s.precision == precision_);
  const Prices& prices = this->prices(s, imbalance);
  const auto pp = static_cast<size_t>(s.mesh.pp);
  const std::vector<StageSums>& sums = stage_sums(s, prices);
  const std::vector<StageOverlap>& states = overlaps(s, prices, sums);
  busy_->assign(pp, {});
  std::vector<Busy>& busy = *busy_;
  Estimate e = bytes_of(s, sums);
  size_t busiest = 0;
  for (size_t i = 0; i < pp; ++i) {
    const StageSums& u = sums[i];
    Busy& b = busy[i];
    b = busy_of(s, u);
    if (b.hideable != 0) b.hideable *= facts(s)[i].paired;
    b.add(states[i]);
    if (b.exposed_seconds() > busy[busiest].exposed_seconds()) busiest = i;
  }
  e.busiest_stage = static_cast<int64_t>(busiest);

  const auto m = static_cast<double>(s.num_micro_batches);
  const StageSums& u = sums[busiest];
  const Busy b = busy[busiest];
  // What pairs hide is taken from both in proportion.
  const double tensor = u.forward.tensor + u.backward.tensor,
               exchange = u.forward.exchange + u.backward.exchange;
  const double shown = b.hideable > 0 ? 1 - b.hideable / (tensor + exchange) : 1;
  e.time.tensor = m * shown * tensor;
  e.time.exchange = m * shown * exchange;
  e.time.context = m * (u.forward.context + u.backward.context);
  e.time.recompute = m * (u.again.compute / efficiency_ + communication(u.again));
  const double with_states =
      m * (states[busiest].forward + states[busiest].backward + states[busiest].weights);
  e.time.compute = m * b.exposed_seconds() - e.time.tensor - e.time.exchange - e.time.context -
                   e.time.recompute - with_states;
  const double message = this->message(s, prices).total();
  e.time.messages =
      2 * message * (1 - trainer_.hidden_messages) * m * static_cast<double>(s.mesh.vpp);
  // Who updates most, which with divided states is not who holds most, ends last.
  const StageSums& most = *std::ranges::max_element(sums, {}, [&](const StageSums& x) {
    return update_seconds(s, x) + optimizer_copy_seconds(s, updated_parameters(s, x));
  });
  e.time.update = update_seconds(s, most);
  e.time.offload += optimizer_copy_seconds(s, updated_parameters(s, most));
  const Pipeline pipeline{.states = states,
                          .in_turn = m * b.exposed_seconds(),
                          .with_states = with_states,
                          .last_backward = b.backward / static_cast<double>(s.mesh.vpp),
                          .bubble = bubble_of(s, busy, busiest, message)};
  add_pipeline(s, prices, pipeline, give_up_above_seconds, most_bytes, e);
  e.seconds = e.time.total();
  return e;
}

}  // namespace piper::cost
