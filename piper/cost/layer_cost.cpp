#include <piper/cost/exchange_time.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/shard.h>

#include <algorithm>

namespace piper::cost {
namespace {

using graph::Phase;
using schedule::SegmentKind;

// Expert groups that may lie differently on the nodes: all of them where ep divides nothing, but no
// more than this many are looked at.
constexpr int64_t kMaxGroupsLookedAt = 16;

}  // namespace

SegmentWork balanced_work(const model::Model& model, int32_t layer, int64_t sequences,
                          int64_t sequence, int64_t ep, int64_t element_bytes) {
  SegmentWork work{.sequences = sequences, .sequence = sequence, .element_bytes = element_bytes};
  if (layer < 0) return work;
  work.sequence = model.positions(layer, sequence);
  const model::FeedForward& ff = model.layers[static_cast<size_t>(layer)].feed_forward;
  if (!ff.is_moe()) return work;
  work.rows = work.tokens() * ff.top_k;
  work.received_rows = work.rows;
  work.local_experts = ff.num_experts / ep;
  work.largest_expert_rows = (work.received_rows + work.local_experts - 1) / work.local_experts;
  return work;
}

LayerCosts::LayerCosts(const model::Model& model, const cluster::Cluster& cluster,
                       strategy::Precision precision, int64_t sequence)
    : model_(model), cluster_(cluster), precision_(precision), sequence_(sequence) {
  for (int32_t layer = 0; layer < std::ssize(model.layers); ++layer) {
    const auto same = std::ranges::find_if(representative_, [&](int32_t other) {
      return model.layers[static_cast<size_t>(other)] == model.layers[static_cast<size_t>(layer)] &&
             model.mtp_depth_of(other) == model.mtp_depth_of(layer);
    });
    type_.push_back(static_cast<size_t>(same - representative_.begin()));
    if (same == representative_.end()) representative_.push_back(layer);
  }
}

const LayerCost& LayerCosts::layer(size_t type, int64_t micro_batch_sequences,
                                   const strategy::Mesh& mesh) {
  const std::tuple key(type, micro_batch_sequences, mesh.ep,
                       std::min(mesh.world() / mesh.ep, kMaxGroupsLookedAt));
  const auto found = layers_.find(key);
  if (found != layers_.end()) return found->second;
  return layers_.emplace(key, make_layer(type, micro_batch_sequences, mesh)).first->second;
}

const EndCost& LayerCosts::ends(int64_t micro_batch_sequences) {
  const auto found = ends_.find(micro_batch_sequences);
  if (found != ends_.end()) return found->second;
  return ends_.emplace(micro_batch_sequences, make_ends(micro_batch_sequences)).first->second;
}

LayerCost LayerCosts::make_layer(size_t type, int64_t sequences, const strategy::Mesh& mesh) const {
  const int32_t layer = representative_[type];
  const SegmentWork work =
      balanced_work(model_, layer, sequences, sequence_, mesh.ep, element_bytes(precision_));
  const bool moe = model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe();
  std::vector<SegmentKind> segments =
      moe ? std::vector{SegmentKind::kAttention, SegmentKind::kGate, SegmentKind::kExperts,
                        SegmentKind::kMerge}
          : std::vector{SegmentKind::kAttention, SegmentKind::kDenseMlp};
  if (model_.layers[static_cast<size_t>(layer)].feed_forward.has_shared())
    segments.push_back(SegmentKind::kSharedExperts);
  LayerCost cost;
  for (const SegmentKind kind : segments) {
    const double forward =
        segment_seconds(model_, {kind, layer}, Phase::kForward, work, cluster_, precision_);
    cost.forward += forward;
    if (kind != SegmentKind::kMerge) cost.recompute += forward;
    cost.backward +=
        segment_seconds(model_, {kind, layer}, Phase::kBackward, work, cluster_, precision_);
  }
  const bool exchanged = moe && mesh.ep > 1;
  if (exchanged) add_exchanges(cost, layer, work, mesh);
  for (const auto recompute : {strategy::Recompute::kNone, strategy::Recompute::kFull})
    cost.memory[static_cast<size_t>(recompute)] =
        layer_memory(model_, layer, work, exchanged, recompute);
  return cost;
}

void LayerCosts::add_exchanges(LayerCost& cost, int32_t layer, const SegmentWork& work,
                               const strategy::Mesh& mesh) const {
  const int64_t experts = model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
  const double pair_bytes = static_cast<double>(work.rows) * static_cast<double>(model_.hidden) *
                            static_cast<double>(work.element_bytes) / static_cast<double>(mesh.ep);
  double rows = 0, counts = 0;
  const int64_t groups = std::min(mesh.world() / mesh.ep, kMaxGroupsLookedAt);
  for (int64_t i = 0; i < groups; ++i) {
    const Group group{.first = i * mesh.ep, .size = mesh.ep};
    rows = std::max(rows, all_to_all_seconds(cluster_, group, pair_bytes));
    counts = std::max(counts, exchange_counts_seconds(cluster_, group, experts / mesh.ep));
  }
  cost.exchange_forward = counts + 2 * rows;
  cost.exchange_backward = 2 * rows;
  cost.exchange_recompute = 2 * rows;
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
