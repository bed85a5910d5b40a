#include <piper/cost/exchange_time.h>
#include <piper/cost/gradient_reduction_overlap.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/layer_walk.h>
#include <piper/cost/segment_time.h>
#include <piper/schedule/layer_kind.h>
#include <piper/strategy/state_bytes.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

namespace piper::cost {
namespace {

using graph::Phase;
using schedule::SegmentKind;

// Expert groups that may lie differently on the nodes: all of them where ep divides nothing, but no
// more than this many are looked at.
constexpr int64_t kMaxGroupsLookedAt = 16;

}  // namespace

SegmentWork balanced_work(const model::Model& model, int32_t layer, int64_t sequences,
                          int64_t sequence, int64_t ep, int64_t element_bytes,
                          const strategy::Capacity& capacity, const WorkDivision& by) {
  SegmentWork work{
      .sequences = sequences, .sequence = sequence, .by = by, .element_bytes = element_bytes};
  if (layer < 0) return work;
  const model::FeedForward& ff = model.layers[static_cast<size_t>(layer)].feed_forward;
  if (!ff.is_moe()) return work;
  // A capacity drops padding.
  const int64_t trained = model.trained_positions(layer, sequence);
  const int64_t tokens =
      capacity.is_limited() ? work.gated_tokens() * trained / sequence : work.gated_tokens();
  const int64_t most =
      by.gated * sequences * ff.num_experts *
      strategy::expert_capacity(capacity.factor, trained, ff.top_k, ff.num_experts) / by.routed;
  const int64_t all_rows = capacity.pads ? most : std::min(tokens * ff.top_k, most);
  work.rows = (all_rows + by.rows - 1) / by.rows;
  work.others_rows = all_rows - work.rows;
  work.received_rows = work.rows * work.receivers();
  work.local_experts = ff.num_experts / ep + by.copied_experts;
  work.gathered_rows = work.received_rows * by.experts;
  work.largest_expert_rows = (work.computed_rows() + work.local_experts - 1) / work.local_experts;
  return work;
}

LayerCosts::LayerCosts(const model::Model& model, const cluster::Cluster& cluster,
                       strategy::Precision precision, int64_t sequence, const ExpertLoad* load)
    : model_(model),
      cluster_(cluster),
      precision_(precision),
      sequence_(sequence),
      load_(load != nullptr && !load->share.empty() ? load : nullptr),
      grouped_(grouped_choice_of(cluster, precision)) {
  for (int32_t layer = 0; layer < std::ssize(model.layers); ++layer) {
    const auto same = std::ranges::find_if(representative_, [&](int32_t other) {
      return load_ == nullptr &&
             model.layers[static_cast<size_t>(other)] == model.layers[static_cast<size_t>(layer)] &&
             model.mtp_depth_of(other) == model.mtp_depth_of(layer);
    });
    type_.push_back(static_cast<size_t>(same - representative_.begin()));
    if (same == representative_.end()) representative_.push_back(layer);
  }
}

const LayerCost& LayerCosts::layer(size_t type, const strategy::Strategy& s) {
  const Key key{.type = type,
                .sequences = s.micro_batch_sequences,
                .ep = s.mesh.ep,
                .etp = s.mesh.etp,
                .tp = s.mesh.tp,
                .cp = s.mesh.cp,
                .groups = std::min(s.mesh.world() / s.mesh.ep, kMaxGroupsLookedAt),
                .sequence_parallel = s.sequence_parallel,
                .capacity_factor = s.capacity.factor,
                .pads_capacity = s.capacity.pads,
                .all_to_all = s.all_to_all,
                .chunk_bytes = s.all_to_all_chunk_bytes,
                .moe_schedule = s.moe_schedule,
                .moe_chunks = s.moe_chunks,
                .redundant_experts = s.redundant_experts,
                .context_exchange = s.context_exchange,
                .pairs = strategy::pairs(s.schedule)};
  const auto found = layers_.find(key);
  if (found != layers_.end()) return found->second;
  return layers_.emplace(key, make_layer(type, s)).first->second;
}

const EndCost& LayerCosts::ends(const strategy::Strategy& s) {
  const std::pair key(s.micro_batch_sequences, work_division(s));
  const auto found = ends_.find(key);
  if (found != ends_.end()) return found->second;
  return ends_.emplace(key, make_ends(s)).first->second;
}

// The strategy is where the rows are read from, and stays in its place.
struct LayerCosts::Loaded {
  strategy::Strategy strategy;
  std::optional<ExpertRows> rows;
};

const ExpertRows& LayerCosts::rows(const strategy::Strategy& of) {
  if (loaded_ != nullptr) {
    const strategy::Strategy& s = loaded_->strategy;
    if (s.micro_batch_sequences == of.micro_batch_sequences && s.mesh == of.mesh &&
        s.capacity == of.capacity && s.all_to_all == of.all_to_all &&
        work_division(s) == work_division(of))
      return *loaded_->rows;
  }
  loaded_ = std::make_shared<Loaded>();
  loaded_->strategy = of;
  loaded_->strategy.sequence = sequence_;
  loaded_->strategy.precision = precision_;
  loaded_->rows.emplace(model_, loaded_->strategy, *load_);
  return *loaded_->rows;
}

SegmentWork LayerCosts::balanced(int32_t layer, const strategy::Strategy& s) const {
  return balanced_work(model_, layer, s.micro_batch_sequences, sequence_, s.mesh.ep,
                       element_bytes(precision_), s.capacity, work_division(s));
}

SegmentWork LayerCosts::loaded_work(int32_t layer, const strategy::Strategy& s, int64_t ep_index) {
  SegmentWork work = rows(s).work(layer, ep_index);
  work.grouped = grouped();
  return work;
}

std::vector<SegmentWork> LayerCosts::works(int32_t layer, const strategy::Strategy& s) {
  if (load_ == nullptr) {
    SegmentWork work = balanced(layer, s);
    work.grouped = grouped();
    if (s.all_to_all == strategy::AllToAll::kHaloDedup)
      expect_tokens(model_, layer, s.mesh.ep, work);
    return {work};
  }
  SegmentWork most = loaded_work(layer, s, 0), largest = most;
  for (int64_t ep_index = 1; ep_index < s.mesh.ep; ++ep_index) {
    const SegmentWork work = loaded_work(layer, s, ep_index);
    if (work.received_rows > most.received_rows) most = work;
    if (work.largest_expert_rows > largest.largest_expert_rows) largest = work;
  }
  return {most, largest};
}

LayerMemory LayerCosts::memory(int32_t layer, const strategy::Strategy& s, int64_t ep_index) {
  const schedule::LayerKind kind =
      schedule::layer_kind(model_.layers[static_cast<size_t>(layer)], s);
  const SegmentWork work = loaded_work(layer, s, ep_index);
  const SegmentWork chunk = work_of_chunk(work, kind.chunks > 1 ? 1 : 0, kind.chunks);
  return layer_memory(
      model_, layer, work, schedule::layer_passes(kind, s.recompute),
      kind.exchanges ? exchange_scratch(layer, chunk, s.mesh.ep, all_to_all_of(s)) : 0);
}

Routed LayerCosts::routed(int32_t layer) const {
  return {&model_.layers[static_cast<size_t>(layer)].feed_forward,
          static_cast<double>(model_.hidden * element_bytes(precision_))};
}

int64_t LayerCosts::exchange_scratch(int32_t layer, const SegmentWork& work, int64_t ep,
                                     const AllToAllConfig& config) const {
  const int64_t copies = fused_exchange_scratch(model_, work), ranks = ep * work.receivers();
  if (ranks == 1 || is_plain(config.algorithm)) return copies;
  const auto bytes =
      static_cast<double>(std::max(work.rows * work.receivers(), work.received_rows) *
                          model_.hidden * work.element_bytes);
  const ExchangeSite site(cluster_, {.size = ranks});
  return copies + std::llround(scratch_bytes(site, config, bytes / static_cast<double>(ranks),
                                             routed(layer).on(site)));
}

std::vector<int64_t> LayerCosts::fullest_ep_indices(const strategy::Strategy& s,
                                                    std::span<const int32_t> layers) {
  if (load_ == nullptr || s.mesh.ep == 1) return {0};
  constexpr size_t kMost = 3;
  const ExpertRows& of = rows(s);
  std::vector<std::pair<int64_t, int64_t>> sums, largest;  // rows, ep index
  for (int64_t ep_index = 0; ep_index < s.mesh.ep; ++ep_index) {
    sums.emplace_back(0, ep_index);
    largest.emplace_back(0, ep_index);
    for (const int32_t layer : layers) {
      const int64_t received = of.work(layer, ep_index).received_rows;
      sums.back().first += received;
      largest.back().first = std::max(largest.back().first, received);
    }
  }
  std::vector<int64_t> fullest;
  for (auto* list : {&sums, &largest}) {
    std::ranges::sort(*list, std::greater<>());
    for (size_t i = 0; i < std::min(kMost, list->size()); ++i) fullest.push_back((*list)[i].second);
  }
  std::ranges::sort(fullest);
  fullest.erase(std::unique(fullest.begin(), fullest.end()), fullest.end());
  return fullest;
}

double LayerCosts::hidden_states_seconds(const SegmentWork& work) const {
  const auto bytes = static_cast<double>(work.all_tokens() * model_.hidden * work.element_bytes);
  return all_reduce_seconds(cluster_, {.size = work.by.tensor}, bytes) / 2;
}

LayerCost LayerCosts::make_layer(size_t type, const strategy::Strategy& s) {
  const int32_t layer = representative_[type];
  const std::vector<SegmentWork> busiest = works(layer, s);
  const SegmentWork& work = busiest.front();
  const strategy::Mesh& mesh = s.mesh;
  const AllToAllConfig config = all_to_all_of(s);
  const int64_t num_chunks = strategy::num_moe_chunks(s);
  // One chunk stands for the work of each exchange: chunks are nearly equal.
  const SegmentWork chunk = work_of_chunk(work, num_chunks > 1 ? 1 : 0, num_chunks);
  LayerCost cost;
  const schedule::LayerKind kind =
      schedule::layer_kind(model_.layers[static_cast<size_t>(layer)], s);
  const bool exchanged = kind.exchanges;
  const ExchangeSeconds exchange =
      exchanged ? exchange_seconds(layer, strategy::grouped_peers(s) > 0 ? work : chunk, s)
                : ExchangeSeconds{};
  if (exchanged) {
    const double pair_bytes = static_cast<double>(chunk.rows * model_.hidden * work.element_bytes) /
                              static_cast<double>(mesh.ep);
    const Group group{.size = mesh.ep * work.receivers()};
    const CommTime moves =
        times_flat(all_to_all_moves(cluster_, group, pair_bytes),
                   cost_over_flat(cluster_, group, config, pair_bytes, routed(layer)));
    cost.exchange_scratch = exchange_scratch(layer, chunk, mesh.ep, config);
    cost.moving_part = moves.transfer / moves.total();
  }
  // Among ranks that share a layer's matrices, or experts': a gather or a scatter of all their
  // hidden states, or rows, of so many slots at once; a sum that all of them keep is both. And an
  // all-reduce of their choices.
  const Group sharers{.size = mesh.tp}, context{.stride = mesh.tp, .size = mesh.cp},
      expert_sharers{.size = mesh.etp};
  const auto moved_rows = [&](const schedule::LayerTask& task, size_t slots) {
    if (task.segment == SegmentKind::kContext) {
      const schedule::SlotMeaning all{schedule::SlotKind::kKeysAndValues, {task.segment, layer}};
      const auto bytes = static_cast<double>(slot_bytes(model_, all, work));
      return task.kind == graph::TaskKind::kRing ? ring_hop_seconds(cluster_, context, bytes)
                                                 : all_reduce_seconds(cluster_, context, bytes) / 2;
    }
    if (schedule::gathers_choices(task.segment)) {
      const schedule::SlotMeaning all{schedule::SlotKind::kTokenChoices, {task.segment, layer}};
      return all_reduce_seconds(cluster_,
                                task.segment == SegmentKind::kContextChoices ? context : sharers,
                                static_cast<double>(slot_bytes(model_, all, work))) /
             2;
    }
    const bool is_of_experts =
        schedule::axis_of(task.kind, task.segment) == strategy::Axis::kExpertTensor;
    const int64_t rows = rows_of_all(task.segment, chunk);
    const auto bytes = static_cast<double>(static_cast<int64_t>(slots) * rows * model_.hidden *
                                           work.element_bytes);
    const double both =
        all_reduce_seconds(cluster_, is_of_experts ? expert_sharers : sharers, bytes);
    return task.kind == graph::TaskKind::kAllReduce ? both : both / 2;
  };
  const auto sequence_counts = [&](strategy::Axis ranks) {
    const int64_t experts = model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
    return all_reduce_seconds(
        cluster_, ranks == strategy::Axis::kContext ? context : sharers,
        static_cast<double>(work.counted_sequences() * experts) * sizeof(int64_t));
  };
  std::map<std::tuple<SegmentKind, Phase, int16_t>, double> known;
  const auto segment = [&](const schedule::LayerTask& task, Phase phase) {
    const auto [found, is_new] = known.try_emplace({task.segment, phase, task.chunk}, 0);
    if (is_new)
      for (const SegmentWork& of : busiest)
        found->second =
            std::max(found->second, segment_seconds(model_, {task.segment, layer}, phase,
                                                    work_of_chunk(of, task.chunk, num_chunks),
                                                    cluster_, precision_));
    return found->second;
  };
  const auto communication = [&](const schedule::LayerTask& task) {
    const bool is_of_experts = task.segment == SegmentKind::kExpertTensor;
    switch (task.kind) {
      case graph::TaskKind::kAllToAll:
        return exchange.of_chunk(task.chunk);
      case graph::TaskKind::kExchangeCounts:
        return is_of_experts
                   ? exchange_counts_seconds(
                         cluster_, expert_sharers,
                         num_chunks *
                             model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts)
                   : exchange.counts;
      default:
        if (task.segment == SegmentKind::kSequenceCounts) return sequence_counts(task.group);
        return moved_rows(task, task.writes.size());
    }
  };
  const auto pass = [&](const std::vector<schedule::LayerTask>& tasks, Phase phase) {
    return walk_layer(
        tasks,
        [&](const schedule::LayerTask& task) {
          return segment(task, task.is_recomputed ? Phase::kForward : phase);
        },
        communication);
  };
  const auto segment_of = [&](Phase phase) {
    return [&, phase](const schedule::LayerTask& task) { return segment(task, phase); };
  };
  const PairTasks pair_tasks{.forward = segment_of(Phase::kForward),
                             .backward = segment_of(Phase::kBackwardInput),
                             .weights = segment_of(Phase::kBackwardWeights),
                             .communicate = communication};
  const LayerWalk forward =
      pass(schedule::layer_passes(kind, strategy::Recompute::kNone).forward, Phase::kForward);
  cost.forward = forward.compute;
  cost.exchange_forward = forward.waiting;
  for (const schedule::LayerTask& task :
       schedule::layer_passes(kind, strategy::Recompute::kNone).backward)
    if (task.kind == graph::TaskKind::kCompute)
      cost.backward_weights += segment(task, Phase::kBackwardWeights);
  for (const strategy::Recompute recompute : strategy::kRecomputes) {
    const schedule::LayerPasses& passes = schedule::layer_passes(kind, recompute);
    const LayerWalk again = pass(passes.recompute, Phase::kForward);
    const LayerWalk backward = pass(passes.backward, Phase::kBackward);
    const LayerWalk input = pass(passes.backward, Phase::kBackwardInput);
    cost.backward = backward.compute;  // the same for all
    RecomputeCost& of = cost.by_recompute[static_cast<size_t>(recompute)];
    of = {.compute = again.recompute + backward.recompute,
          .ahead = again.ahead + backward.ahead,
          .exchange = again.waiting + backward.waiting,
          .divided_compute = input.compute + cost.backward_weights - backward.compute,
          .divided_exchange = input.waiting - backward.waiting,
          .memory = layer_memory(model_, layer, work, passes, cost.exchange_scratch)};
    if (!exchanged || !strategy::pairs(s.schedule)) continue;
    const PairSeconds in_pairs = seconds_in_pairs(passes, pair_tasks);
    of.pair_saves = cost.forward + cost.exchange_forward + cost.backward + of.compute +
                    of.exchange - in_pairs.layer;
    of.pair_ends = in_pairs.ends;
  }
  return cost;
}

LayerCosts::ExchangeSeconds LayerCosts::exchange_seconds(int32_t layer, const SegmentWork& work,
                                                         const strategy::Strategy& s) {
  const strategy::Mesh& mesh = s.mesh;
  const AllToAllConfig config = all_to_all_of(s);
  const int64_t num_chunks = strategy::num_moe_chunks(s);
  const int64_t experts = model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
  const double pair_bytes = static_cast<double>(work.rows) * static_cast<double>(model_.hidden) *
                            static_cast<double>(work.element_bytes) / static_cast<double>(mesh.ep);
  const int64_t peers = strategy::grouped_peers(s);
  std::vector<double> to_bytes;
  if (load_ != nullptr)
    for (int64_t to = 0; to < mesh.ep * work.receivers(); ++to)
      to_bytes.push_back(static_cast<double>(rows(s).rows_to(layer, to / work.receivers())) *
                         static_cast<double>(model_.hidden * work.element_bytes) /
                         static_cast<double>(peers > 0 ? 1 : num_chunks));
  else if (peers > 0)
    to_bytes.assign(static_cast<size_t>(peers), pair_bytes);
  const strategy::Axis axis =
      work.by.fuses_exchange ? strategy::Axis::kTensorExpert : strategy::Axis::kExpert;
  ExchangeSeconds longest{
      .rows = std::vector<double>(static_cast<size_t>(peers > 0 ? num_chunks : 1), 0.0)};
  const int64_t groups = std::min(mesh.world() / mesh.ep, kMaxGroupsLookedAt);
  // Takes all ranks as if they were members of one stage: their groups lie alike.
  strategy::Mesh one_stage{.ep = mesh.ep, .dp = mesh.world(), .etp = mesh.etp};
  const strategy::RankLayout layout(one_stage);
  for (int64_t i = 0; i < groups; ++i) {
    const strategy::Members members = layout.members(axis, i * mesh.ep);
    const Group group{.first = members.first, .stride = members.stride, .size = members.size};
    const std::span<const double> uneven(to_bytes);
    const double over_flat =
        load_ == nullptr ? cost_over_flat(cluster_, group, config, pair_bytes, routed(layer))
                         : cost_over_flat(cluster_, group, config, uneven, routed(layer));
    for (int64_t chunk = 0; chunk < std::ssize(longest.rows); ++chunk) {
      double& seconds = longest.rows[static_cast<size_t>(chunk)];
      const double flat = peers > 0
                              ? all_to_all_seconds(cluster_, group, uneven,
                                                   strategy::token_chunk(peers, num_chunks, chunk))
                          : load_ == nullptr ? all_to_all_seconds(cluster_, group, pair_bytes)
                                             : all_to_all_seconds(cluster_, group, uneven);
      seconds = std::max(seconds, flat * over_flat);
    }
    longest.counts = std::max(
        longest.counts, exchange_counts_seconds(cluster_, group, num_chunks * experts / mesh.ep));
  }
  return longest;
}

HeadCost LayerCosts::make_head(int32_t layer, const strategy::Strategy& s) const {
  const SegmentWork work = balanced(layer, s);
  const auto bytes = [&](schedule::SlotKind kind) {
    return slot_bytes(model_, {kind, {SegmentKind::kHead, layer}}, work);
  };
  HeadCost cost{.layer = layer,
                .head = segment_bytes(model_, {SegmentKind::kHead, layer}, work),
                .hidden_bytes = bytes(schedule::SlotKind::kHidden),
                .gradient_bytes = bytes(schedule::SlotKind::kHiddenGradient)};
  if (cost.gradient_bytes < cost.hidden_bytes) cost.gather = hidden_states_seconds(work);
  const auto add = [&](SegmentKind kind) {
    const schedule::Segment segment{kind, layer};
    const auto seconds = [&](Phase phase) {
      return segment_seconds(model_, segment, phase, work, cluster_, precision_);
    };
    const double backward = seconds(Phase::kBackward), weights = seconds(Phase::kBackwardWeights);
    cost.forward += seconds(Phase::kForward);
    cost.backward += backward;
    cost.backward_weights += weights;
    cost.divided_compute += seconds(Phase::kBackwardInput) + weights - backward;
  };
  add(SegmentKind::kHead);
  if (layer < 0) return cost;
  add(SegmentKind::kMtpProjection);
  cost.join = segment_bytes(model_, {SegmentKind::kMtpProjection, layer}, work);
  return cost;
}

EndCost LayerCosts::make_ends(const strategy::Strategy& s) const {
  const SegmentWork work = balanced(-1, s);
  const auto seconds = [&](SegmentKind kind, Phase phase) {
    return segment_seconds(model_, {kind, -1}, phase, work, cluster_, precision_);
  };
  EndCost ends{.embedding_forward = seconds(SegmentKind::kEmbedding, Phase::kForward),
               .embedding_backward = seconds(SegmentKind::kEmbedding, Phase::kBackward),
               .head = make_head(-1, s),
               .hidden_bytes = slot_bytes(
                   model_, {schedule::SlotKind::kHidden, {SegmentKind::kEmbedding, -1}}, work)};
  for (auto layer = static_cast<int32_t>(model_.num_layers()); layer < std::ssize(model_.layers);
       ++layer)
    ends.modules.push_back(make_head(layer, s));
  return ends;
}

}  // namespace piper::cost
