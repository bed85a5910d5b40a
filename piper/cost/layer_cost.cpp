#include <piper/cost/exchange_time.h>
#include <piper/cost/last_backward.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/shard.h>

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

// Compute of a layer's parts, forward, and of the shared experts backward: what runs again, and what hides exchanges
// (schedule/layer.h).
struct Parts {
  bool is_moe = false;
  double attention = 0, gate = 0, nets = 0;  // forward; nets: routed, shared or dense
  double shared = 0, shared_backward = 0;
};

// The part of an exchange that compute does not hide.
double exposed(double exchange, double hidden_by) { return std::max(0.0, exchange - hidden_by); }

// `rows`: of one exchange; `combined_again`: of that which brings the experts' results back once more.
RecomputeCost recompute_cost(const Parts& p, double rows, double combined_again,
                             strategy::Recompute recompute) {
  if (recompute == strategy::Recompute::kFull) {
    const double again = exposed(rows, p.shared) + combined_again;
    return {.compute = p.attention + p.gate + p.nets,
            .ahead = p.attention + p.gate + p.nets + again,
            .exchange = again + exposed(rows, p.shared_backward) + rows};
  }
  const double attention = strategy::drops_attention(recompute) ? p.attention : 0;
  const double nets = strategy::drops_experts(recompute) ? p.nets : 0;
  return {.compute = attention + nets,
          .ahead = p.is_moe ? 0 : nets,
          .exchange = exposed(rows, p.shared_backward + nets) + exposed(rows, attention)};
}

}  // namespace

SegmentWork balanced_work(const model::Model& model, int32_t layer, int64_t sequences,
                          int64_t sequence, int64_t ep, int64_t element_bytes,
                          double capacity_factor) {
  SegmentWork work{.sequences = sequences, .sequence = sequence, .element_bytes = element_bytes};
  if (layer < 0) return work;
  work.sequence = model.positions(layer, sequence);
  const model::FeedForward& ff = model.layers[static_cast<size_t>(layer)].feed_forward;
  if (!ff.is_moe()) return work;
  const int64_t capacity =
      strategy::expert_capacity(capacity_factor, work.sequence, ff.top_k, ff.num_experts);
  work.rows = std::min(work.tokens() * ff.top_k, sequences * ff.num_experts * capacity);
  work.received_rows = work.rows;
  work.local_experts = ff.num_experts / ep;
  work.largest_expert_rows = (work.received_rows + work.local_experts - 1) / work.local_experts;
  return work;
}

LayerCosts::LayerCosts(const model::Model& model, const cluster::Cluster& cluster,
                       strategy::Precision precision, int64_t sequence, const ExpertLoad* load)
    : model_(model),
      cluster_(cluster),
      precision_(precision),
      sequence_(sequence),
      load_(load != nullptr && !load->share.empty() ? load : nullptr) {
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

const LayerCost& LayerCosts::layer(size_t type, int64_t micro_batch_sequences,
                                   const strategy::Mesh& mesh, double capacity_factor,
                                   const ExchangeForm& form) {
  const std::tuple key(type, micro_batch_sequences, mesh.ep,
                       std::min(mesh.world() / mesh.ep, kMaxGroupsLookedAt), capacity_factor,
                       form.algorithm, form.chunk_bytes);
  const auto found = layers_.find(key);
  if (found != layers_.end()) return found->second;
  return layers_.emplace(key, make_layer(type, micro_batch_sequences, mesh, capacity_factor, form))
      .first->second;
}

const EndCost& LayerCosts::ends(int64_t micro_batch_sequences) {
  const auto found = ends_.find(micro_batch_sequences);
  if (found != ends_.end()) return found->second;
  return ends_.emplace(micro_batch_sequences, make_ends(micro_batch_sequences)).first->second;
}

// The strategy is where the rows are read from, and stays in its place.
struct LayerCosts::Loaded {
  strategy::Strategy strategy;
  std::optional<ExpertRows> rows;
};

const ExpertRows& LayerCosts::rows(int64_t sequences, const strategy::Mesh& mesh,
                                   double capacity_factor, strategy::AllToAll algorithm) {
  if (loaded_ != nullptr) {
    const strategy::Strategy& s = loaded_->strategy;
    if (s.micro_batch_sequences == sequences && s.mesh == mesh &&
        s.capacity.factor == capacity_factor && s.all_to_all == algorithm)
      return *loaded_->rows;
  }
  loaded_ = std::make_shared<Loaded>();
  strategy::Strategy& s = loaded_->strategy;
  s.mesh = mesh;
  s.sequence = sequence_;
  s.precision = precision_;
  s.micro_batch_sequences = sequences;
  s.capacity.factor = capacity_factor;
  s.all_to_all = algorithm;
  loaded_->rows.emplace(model_, s, *load_);
  return *loaded_->rows;
}

std::vector<SegmentWork> LayerCosts::works(int32_t layer, int64_t sequences,
                                           const strategy::Mesh& mesh, double capacity_factor,
                                           strategy::AllToAll algorithm) {
  if (load_ == nullptr) {
    SegmentWork work = balanced_work(model_, layer, sequences, sequence_, mesh.ep,
                                     element_bytes(precision_), capacity_factor);
    if (algorithm == strategy::AllToAll::kHaloDedup) expect_tokens(model_, layer, mesh.ep, work);
    return {work};
  }
  const ExpertRows& of = rows(sequences, mesh, capacity_factor, algorithm);
  SegmentWork most = of.work(layer, 0), largest = most;
  for (int64_t ep_index = 1; ep_index < mesh.ep; ++ep_index) {
    const SegmentWork work = of.work(layer, ep_index);
    if (work.received_rows > most.received_rows) most = work;
    if (work.largest_expert_rows > largest.largest_expert_rows) largest = work;
  }
  return {most, largest};
}

LayerMemory LayerCosts::memory(int32_t layer, const strategy::Strategy& s, int64_t ep_index) {
  const bool exchanged =
      model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe() && s.mesh.ep > 1;
  const SegmentWork work =
      rows(s.micro_batch_sequences, s.mesh, s.capacity.factor, s.all_to_all).work(layer, ep_index);
  return layer_memory(model_, layer, work, exchanged, s.recompute,
                      exchanged ? exchange_scratch(layer, work, s.mesh.ep, form_of(s)) : 0);
}

Routed LayerCosts::routed(int32_t layer) const {
  return {&model_.layers[static_cast<size_t>(layer)].feed_forward,
          static_cast<double>(model_.hidden * element_bytes(precision_))};
}

int64_t LayerCosts::exchange_scratch(int32_t layer, const SegmentWork& work, int64_t ep,
                                     const ExchangeForm& form) const {
  if (ep == 1 || is_plain(form.algorithm)) return 0;
  const auto bytes = static_cast<double>(std::max(work.rows, work.received_rows) * model_.hidden *
                                         work.element_bytes);
  const ExchangeSite site(cluster_, {.size = ep});
  return std::llround(
      scratch_bytes(site, form, bytes / static_cast<double>(ep), routed(layer).on(site)));
}

std::vector<int64_t> LayerCosts::fullest_ep_indices(const strategy::Strategy& s,
                                                    std::span<const int32_t> layers) {
  if (load_ == nullptr || s.mesh.ep == 1) return {0};
  constexpr size_t kMost = 3;
  const ExpertRows& of = rows(s.micro_batch_sequences, s.mesh, s.capacity.factor, s.all_to_all);
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

LayerCost LayerCosts::make_layer(size_t type, int64_t sequences, const strategy::Mesh& mesh,
                                 double capacity_factor, const ExchangeForm& form) {
  const int32_t layer = representative_[type];
  const std::vector<SegmentWork> busiest =
      works(layer, sequences, mesh, capacity_factor, form.algorithm);
  const SegmentWork& work = busiest.front();
  const bool moe = model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe();
  std::vector<SegmentKind> segments =
      moe ? std::vector{SegmentKind::kAttention, SegmentKind::kGate, SegmentKind::kExperts,
                        SegmentKind::kMerge}
          : std::vector{SegmentKind::kAttention, SegmentKind::kDenseMlp};
  if (model_.layers[static_cast<size_t>(layer)].feed_forward.has_shared())
    segments.push_back(SegmentKind::kSharedExperts);
  LayerCost cost;
  Parts parts{.is_moe = moe};
  for (const SegmentKind kind : segments) {
    double forward = 0, backward = 0;
    for (const SegmentWork& of : busiest) {
      forward = std::max(forward, segment_seconds(model_, {kind, layer}, Phase::kForward, of,
                                                  cluster_, precision_));
      backward = std::max(backward, segment_seconds(model_, {kind, layer}, Phase::kBackward, of,
                                                    cluster_, precision_));
    }
    cost.forward += forward;
    cost.backward += backward;
    if (kind == SegmentKind::kAttention)
      parts.attention = forward;
    else if (kind == SegmentKind::kGate)
      parts.gate = forward;
    else if (kind != SegmentKind::kMerge)
      parts.nets += forward;
    if (kind == SegmentKind::kSharedExperts) {
      parts.shared = forward;
      parts.shared_backward = backward;
    }
  }
  const bool exchanged = moe && mesh.ep > 1;
  const ExchangeSeconds exchange =
      exchanged ? exchange_seconds(layer, work, mesh, capacity_factor, form) : ExchangeSeconds{};
  if (exchanged) {
    const double pair_bytes = static_cast<double>(work.rows * model_.hidden * work.element_bytes) /
                              static_cast<double>(mesh.ep);
    const Group group{.size = mesh.ep};
    const Moves moves = with_form(all_to_all_moves(cluster_, group, pair_bytes),
                                  form_factor(cluster_, group, form, pair_bytes, routed(layer)));
    cost.exchange_scratch = exchange_scratch(layer, work, mesh.ep, form);
    cost.moving_part = moves.transfer / moves.total();
  }
  cost.exchange_forward = exposed(exchange.counts + exchange.rows, parts.shared) + exchange.rows;
  for (const strategy::Recompute recompute : strategy::kRecomputes) {
    RecomputeCost& with = cost.by_recompute[static_cast<size_t>(recompute)];
    const bool sums = form.algorithm == strategy::AllToAll::kHaloDedup;  // nobody reads them
    with = recompute_cost(parts, exchange.rows, sums ? 0 : exchange.rows, recompute);
    with.memory = layer_memory(model_, layer, work, exchanged, recompute, cost.exchange_scratch);
  }
  return cost;
}

LayerCosts::ExchangeSeconds LayerCosts::exchange_seconds(int32_t layer, const SegmentWork& work,
                                                         const strategy::Mesh& mesh,
                                                         double capacity_factor,
                                                         const ExchangeForm& form) {
  const int64_t experts = model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
  const double pair_bytes = static_cast<double>(work.rows) * static_cast<double>(model_.hidden) *
                            static_cast<double>(work.element_bytes) / static_cast<double>(mesh.ep);
  std::vector<double> to_bytes;
  if (load_ != nullptr)
    for (int64_t to = 0; to < mesh.ep; ++to)
      to_bytes.push_back(
          static_cast<double>(
              rows(work.sequences, mesh, capacity_factor, form.algorithm).rows_to(layer, to)) *
          static_cast<double>(model_.hidden * work.element_bytes));
  ExchangeSeconds longest;
  const int64_t groups = std::min(mesh.world() / mesh.ep, kMaxGroupsLookedAt);
  for (int64_t i = 0; i < groups; ++i) {
    const Group group{.first = i * mesh.ep, .size = mesh.ep};
    const std::span<const double> uneven(to_bytes);
    longest.rows = std::max(longest.rows,
                            load_ == nullptr
                                ? all_to_all_seconds(cluster_, group, pair_bytes) *
                                      form_factor(cluster_, group, form, pair_bytes, routed(layer))
                                : all_to_all_seconds(cluster_, group, uneven) *
                                      form_factor(cluster_, group, form, uneven, routed(layer)));
    longest.counts =
        std::max(longest.counts, exchange_counts_seconds(cluster_, group, experts / mesh.ep));
  }
  return longest;
}

HeadCost LayerCosts::make_head(int32_t layer, int64_t sequences) const {
  const SegmentWork work =
      balanced_work(model_, layer, sequences, sequence_, 1, element_bytes(precision_));
  HeadCost cost{.layer = layer,
                .head = segment_bytes(model_, {SegmentKind::kHead, layer}, work),
                .hidden_bytes = slot_bytes(
                    model_, {schedule::SlotKind::kHidden, {SegmentKind::kHead, layer}}, work)};
  const auto add = [&](SegmentKind kind) {
    const schedule::Segment segment{kind, layer};
    cost.forward += segment_seconds(model_, segment, Phase::kForward, work, cluster_, precision_);
    cost.backward += segment_seconds(model_, segment, Phase::kBackward, work, cluster_, precision_);
  };
  add(SegmentKind::kHead);
  if (layer < 0) return cost;
  add(SegmentKind::kMtpJoin);
  cost.join = segment_bytes(model_, {SegmentKind::kMtpJoin, layer}, work);
  return cost;
}

EndCost LayerCosts::make_ends(int64_t sequences) const {
  const SegmentWork work =
      balanced_work(model_, -1, sequences, sequence_, 1, element_bytes(precision_));
  const auto seconds = [&](SegmentKind kind, Phase phase) {
    return segment_seconds(model_, {kind, -1}, phase, work, cluster_, precision_);
  };
  EndCost ends{.embedding_forward = seconds(SegmentKind::kEmbedding, Phase::kForward),
               .embedding_backward = seconds(SegmentKind::kEmbedding, Phase::kBackward),
               .head = make_head(-1, sequences),
               .hidden_bytes = slot_bytes(
                   model_, {schedule::SlotKind::kHidden, {SegmentKind::kEmbedding, -1}}, work)};
  for (auto layer = static_cast<int32_t>(model_.num_layers()); layer < std::ssize(model_.layers);
       ++layer)
    ends.modules.push_back(make_head(layer, sequences));
  return ends;
}

}  // namespace piper::cost
