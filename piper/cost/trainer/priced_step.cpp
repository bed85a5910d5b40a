#include <piper/base/error.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/schedule/layer_kind.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>

namespace piper::cost {

using graph::Phase;
using graph::Task;
using graph::TaskKind;
using schedule::ComputePart;
using schedule::Segment;
using schedule::SegmentKind;
using strategy::Axis;

schedule::ExecutionStyle style_of(const TrainerProfile& trainer) {
  schedule::ExecutionStyle style;
  style.splits_tensor = trainer.hidden_tensor > 0;
  style.splits_context = true;
  style.splits_exchange = trainer.hidden_exchange > 0;
  style.waits_for_sends = trainer.hidden_messages < 1;
  style.in_order = true;
  style.exchanges_counts = false;
  style.mixture_is_one_segment = true;
  style.splits_replicated_tokens = !trainer.schedules_mixtures;
  style.gathers_inputs_again = trainer.gathers_twice;
  style.follows_context_exchange = false;
  style.reruns_whole_layers = true;
  style.reruns_first = true;
  style.has_mtp_modules = false;
  style.keeps_by_layer = true;
  style.divides_ends_by_tokens = false;
  style.states_in_slots = false;
  style.param_sync_has_stream = true;
  style.overlaps_param_sync = trainer.hidden_gradients > 0;
  style.exposes_param_sync = trainer.hidden_gradients < 1;
  style.keeps_weights_in_pipelines = trainer.keeps_weights_in_pipelines;
  style.copies_in_turn = false;
  style.updates_on_device = false;
  return style;
}

namespace {

CommTime part_of(const CommTime& moves, double part) {
  return {part * moves.latency, part * moves.transfer};
}

// Whether a collective gathers the output of a mixture layer (MixtureCollectives::output).
bool gathers_output(TaskKind kind, const strategy::Strategy& s) {
  return kind == TaskKind::kAllGather && !s.sequence_parallel;
}

// What a pass of a layer gathers and sums for tensor parallelism around its blocks: slots, one
// after another.
double tensor_units(const schedule::LayerPass& pass, const strategy::Strategy& s) {
  double units = 0;
  for (const schedule::LayerOperation& operation : pass.operations())
    if (operation.segment == SegmentKind::kTensor && !gathers_output(operation.kind, s))
      units += static_cast<double>(operation.reads.size());
  return units;
}

class TrainerStepPricer {
 public:
  TrainerStepPricer(TrainerEstimator& estimator, const strategy::Strategy& s,
                    const schedule::StepGraph& step, double imbalance)
      : estimator_(estimator),
        s_(s),
        step_(step),
        parts_(estimator.parts(s, imbalance)),
        layout_(s),
        rates_(estimator.rates().among(s.mesh.world())),
        ports_(estimator.cluster(), participants(step.graph)),
        first_host_port_(static_cast<int32_t>(ports_.capacity().size())) {
    for (size_t chunk = 0; chunk < parts_.chunks.size(); ++chunk)
      chunk_of_layer_.insert(chunk_of_layer_.end(), parts_.chunks[chunk].layers.size(), chunk);
  }

  Prices price() {
    Prices prices;
    const int64_t world = s_.mesh.world();
    prices.node_of_rank.assign(static_cast<size_t>(world), 0);
    prices.links.capacity = ports_.capacity();
    prices.links.capacity.resize(prices.links.capacity.size() + static_cast<size_t>(world),
                                 kWholeShare);
    prices.links.first_need = {0};
    const auto operations = static_cast<size_t>(step_.graph.num_operations());
    prices.links.pattern.assign(operations, kNotYet);
    prices.links.transfer_seconds.resize(operations);
    for (int64_t rank = 0; rank < world; ++rank)
      prices.static_bytes.push_back(step_.graph.takes_part(Rank(rank)) ? static_bytes(Rank(rank))
                                                                       : 0);
    for (const Task& task : step_.graph.tasks()) {
      const TaskPrice& p = of(task);
      prices.seconds.push_back(p.moves.total());
      prices.transient_bytes.push_back(p.transient_bytes);
      if (task.operation.valid()) share_links(task, p, prices.links);
    }
    for (const graph::Slot& slot : step_.graph.slots()) prices.slot_bytes.push_back(bytes_of(slot));
    return prices;
  }

 private:
  static constexpr int32_t kNotYet = -2, kShares = -1;  // patterns

  static std::vector<char> participants(const graph::Graph& graph) {
    std::vector<char> is_here;
    for (int64_t rank = 0; rank < graph.num_ranks(); ++rank)
      is_here.push_back(graph.takes_part(Rank(rank)) ? 1 : 0);
    return is_here;
  }

  struct TaskPrice {
    CommTime moves;  // of compute: all of it latency
    int64_t transient_bytes = 0;
    LevelUtilization needs = {};  // of collectives, while bytes move
  };

  const StagePart& stage(Rank rank) const {
    return parts_.stages[static_cast<size_t>(layout_.stage(rank))];
  }
  const ChunkPart& chunk(int32_t layer) const {
    return parts_.chunks[chunk_of_layer_[static_cast<size_t>(layer)]];
  }
  const LayerPrice& layer_price(int32_t layer) const {
    const ChunkPart& of = chunk(layer);
    return *of.layers[static_cast<size_t>(layer - of.first_layer)];
  }
  int64_t static_bytes(Rank rank) const {
    const StageBytes& b = stage(rank).bytes;
    return std::llround(b.weights_and_gradients + b.optimizer + b.fixed);
  }

  const TaskPrice& of(const Task& task) {
    const uint64_t segment = task.segment.valid() ? task.segment.index() + 1
                             : task.peer.valid()
                                 ? static_cast<uint64_t>(layout_.stage(task.peer)) + 1
                                 : 0;
    const uint64_t key = (segment << 32) | (static_cast<uint64_t>(layout_.stage(task.rank)) << 16) |
                         (static_cast<uint64_t>(task.phase) << 8) |
                         static_cast<uint64_t>(task.kind);
    const auto [found, is_new] = known_.try_emplace(key);
    if (is_new) found->second = make(task);
    return found->second;
  }

  TaskPrice make(const Task& task) const {
    if (task.peer.valid()) {
      const auto [low, high] = std::minmax({layout_.stage(task.rank), layout_.stage(task.peer)});
      const StageMessage& message =
          parts_.messages[static_cast<size_t>(high - low == 1 ? low : high)];
      return {message.moves, 0, rates_.message_needs(message.level)};
    }
    const Segment& segment = step_.segment(task);
    if (task.kind == TaskKind::kCompute) {
      const StageBytes& b = stage(task.rank).bytes;
      double beside = graph::is_backward(task.phase) && segment.kind != SegmentKind::kWait
                          ? b.working + b.exchange
                          : 0;
      if (has_recomputed(task, segment)) beside -= dropped_bytes(segment.layer);
      return {{.latency = seconds(task, segment), .transfer = 0}, std::llround(beside)};
    }
    TaskPrice price{.moves = moves(task, segment)};
    const Axis axis = schedule::axis_of(task.kind, segment.kind);
    if (task.kind == TaskKind::kAllToAll)
      price.needs = exchange(segment, task.phase).needs;
    else if (axis != Axis::kWorld && axis != Axis::kEmbeddingTable && axis != Axis::kRank)
      price.needs = rates_.ring_needs(layout_.size(axis), layout_.distance(axis));
    return price;
  }

  // Whether what the layer has computed again lies in a slot, and no longer in what works.
  static bool has_recomputed(const Task& task, const Segment& segment) {
    return segment.layer >= 0 &&
           (task.phase == Phase::kBackwardWeights ||
            (task.phase == Phase::kBackwardInput && segment.kind == SegmentKind::kAttention));
  }
  double kept_bytes(int32_t layer) const {
    return layer_price(layer).kept_bytes(chunk(layer).recompute, *parts_.trainer);
  }
  double dropped_bytes(int32_t layer) const {
    return layer_price(layer).kept_bytes(strategy::Recompute::kNone, *parts_.trainer) -
           kept_bytes(layer);
  }

  // --- compute ---
  double seconds(const Task& task, const Segment& segment) const {
    if (segment.kind == SegmentKind::kEmbedding)
      return end_seconds(task.phase, parts_.chunks.front(), parts_.ends->embedding_forward,
                         parts_.ends->embedding_backward);
    if (segment.kind == SegmentKind::kHead)
      return end_seconds(task.phase, parts_.chunks.back(), parts_.ends->head_forward,
                         parts_.ends->head_backward);
    if (segment.kind == SegmentKind::kOptimizer) return stage(task.rank).update_seconds;
    if (segment.kind == SegmentKind::kWait)
      return segment.share == ComputePart::kWhole ? parts_.message_wait : 0;
    if (segment.layer < 0) return 0;  // the norm's share is in the update
    if (task.phase == Phase::kRecompute && !is_full(segment.layer)) return again_seconds(segment);
    return share_of(segment, task.phase, block_seconds(segment, task.phase));
  }

  static double end_seconds(Phase phase, const ChunkPart& chunk, double forward, double backward) {
    switch (phase) {
      case Phase::kForward:
        return forward * chunk.scale.forward;
      case Phase::kBackward:
      case Phase::kBackwardInput:
        return backward * chunk.scale.backward;
      case Phase::kBackwardWeights:
        return backward * chunk.scale.weights;
      case Phase::kRecompute:
      case Phase::kUpdate:
        break;
    }
    return 0;
  }

  bool is_full(int32_t layer) const { return chunk(layer).recompute == strategy::Recompute::kFull; }

  // All parts of a segment together.
  double block_seconds(const Segment& segment, Phase phase) const {
    const ChunkPart& of = chunk(segment.layer);
    const LayerPrice& p = layer_price(segment.layer);
    const BlockCompute& block =
        segment.kind == SegmentKind::kAttention ? p.attention : p.feed_forward;
    switch (phase) {
      case Phase::kForward:
        return block.forward * of.scale.forward;
      case Phase::kRecompute:
        return block.forward * of.scale.backward;
      case Phase::kBackward:
        return block.backward * of.scale.backward;
      case Phase::kBackwardInput:
        return std::max(
            0.0, block.backward * of.scale.backward - block.backward_weights * of.scale.weights);
      case Phase::kBackwardWeights:
        return block.backward_weights * of.scale.weights;
      case Phase::kUpdate:
        break;
    }
    return 0;
  }

  double again_seconds(const Segment& segment) const {
    const ChunkPart& of = chunk(segment.layer);
    const LayerPrice& p = layer_price(segment.layer);
    const double experts = strategy::drops_experts(of.recompute) ? p.experts_forward : 0;
    const double again = segment.kind == SegmentKind::kAttention
                             ? p.again(of.recompute, *parts_.trainer).compute - experts
                             : experts;
    return again * of.scale.backward;
  }

  // What computes beside a collective is as long as what it hides, the rest is what is left.
  double share_of(const Segment& segment, Phase phase, double seconds) const {
    if (segment.share == ComputePart::kWhole) return seconds;
    const LayerPrice& p = layer_price(segment.layer);
    const bool forward = phase == Phase::kForward || phase == Phase::kRecompute;
    double before = 0, behind = 0, beside = 0;
    if (segment.kind == SegmentKind::kExperts) {
      const MixtureCollectives& m = mixture(p, phase);
      before = (forward ? m.dispatch : m.combine).hidden;
      behind = (forward ? m.combine : m.dispatch).hidden;
    } else {
      const schedule::LayerProgram& of = program(segment.layer);
      const CollectiveCost& travel = forward ? p.tensor_forward : p.tensor_backward;
      const double units = tensor_units(forward ? of.forward : of.backward, s_);
      const double arriving =
          s_.sequence_parallel ? !forward && parts_.trainer->gathers_twice ? 2 : 1 : 0;
      if (parts_.trainer->hidden_tensor > 0 && units > 0) {
        before = arriving * travel.hidden / units;
        behind = travel.hidden / units;
      }
      if (segment.kind == SegmentKind::kAttention)
        beside = (forward ? p.context_forward : p.context_backward).hidden;
    }
    before = std::min(before, seconds / 2);
    behind = std::min(behind, seconds / 2);
    beside = std::min(beside, seconds - before - behind);
    switch (segment.share) {
      case ComputePart::kBefore:
        return before;
      case ComputePart::kBehind:
        return behind;
      case ComputePart::kBeside:
        return beside;
      case ComputePart::kWhole:
      case ComputePart::kRest:
        break;
    }
    return seconds - before - behind - beside;
  }

  // --- communication ---
  static const MixtureCollectives& mixture(const LayerPrice& price, Phase phase) {
    return phase == Phase::kForward || phase == Phase::kRecompute ? price.mixture_forward
                                                                  : price.mixture_backward;
  }
  const CollectiveCost& exchange(const Segment& segment, Phase phase) const {
    const MixtureCollectives& m = mixture(layer_price(segment.layer), phase);
    return segment.kind == SegmentKind::kGate ? m.dispatch : m.combine;
  }

  const schedule::LayerProgram& program(int32_t layer) const {
    const schedule::LayerKind kind = schedule::layer_kind(
        estimator_.model().layers[static_cast<size_t>(layer)], s_, style_of(*parts_.trainer));
    const auto [found, is_new] = programs_.try_emplace(kind);
    if (is_new) found->second = schedule::layer_program(kind);
    return found->second;
  }

  // A gather or a reduce-scatter, or an all-reduce, which is both.
  static double of_expert_tensor(const Task& task) {
    return task.kind == TaskKind::kAllReduce ? 1 : 0.5;
  }

  CommTime moves(const Task& task, const Segment& segment) const {
    if (task.kind == TaskKind::kAllToAll) return exchange(segment, task.phase).moves;
    if (segment.kind == SegmentKind::kHostCopy)
      return {.latency = 0,
              .transfer = segment.layer < 0 ? stage(task.rank).optimizer_copy_seconds
                                            : chunk(segment.layer).copy_seconds};
    const Axis axis = schedule::axis_of(task.kind, segment.kind);
    if (axis == Axis::kData || axis == Axis::kExpertData) return state_moves(task, segment);
    // Sums over the world and the two ends are taken to cost nothing.
    if (axis == Axis::kWorld || axis == Axis::kEmbeddingTable) return {};
    const LayerPrice& p = layer_price(segment.layer);
    const bool forward = task.phase == Phase::kForward || task.phase == Phase::kRecompute;
    if (segment.kind == SegmentKind::kExpertTokens) return mixture(p, task.phase).tokens.moves;
    if (axis == Axis::kExpertTensor)
      return part_of(mixture(p, task.phase).expert_tensor.moves, of_expert_tensor(task));
    if (axis == Axis::kContext) return (forward ? p.context_forward : p.context_backward).moves;
    const CommTime& all = (forward ? p.tensor_forward : p.tensor_backward).moves;
    if (gathers_output(task.kind, s_)) return mixture(p, task.phase).output.moves;
    const schedule::LayerProgram& of = program(segment.layer);
    const double units = tensor_units(forward ? of.forward : of.backward, s_);
    const auto here = static_cast<double>(step_.graph.reads(task).size());
    return part_of(all, here / units);
  }

  CommTime state_moves(const Task& task, const Segment& segment) const {
    const StagePart& of = stage(task.rank);
    const bool is_dense =
        segment.kind == SegmentKind::kDenseGradients || segment.kind == SegmentKind::kDenseWeights;
    const bool gathers =
        segment.kind == SegmentKind::kDenseWeights || segment.kind == SegmentKind::kExpertWeights;
    const Reduction& reduction = is_dense ? of.traffic.dense : of.traffic.experts;
    const double all = is_dense ? of.dense_parameters : of.expert_parameters;
    const double hidden = parts_.hidden_gradients;
    double part = segment.share == ComputePart::kWhole    ? 1
                  : segment.share == ComputePart::kBeside ? hidden
                                                          : 1 - hidden;
    const bool is_of_stage = task.phase == Phase::kUpdate && segment.share == ComputePart::kRest;
    if (!is_of_stage) part *= all > 0 ? parameters(segment.layer, is_dense) / all : 0;
    return part_of(gathers ? reduction.gather : reduction.reduce, part);
  }

  double parameters(int32_t layer, bool is_dense) const {
    if (layer >= 0)
      return is_dense ? layer_price(layer).dense_parameters : layer_price(layer).expert_parameters;
    if (!is_dense) return 0;
    if (layer == -1) return parts_.ends->embedding_parameters;
    // A shared table lies with both ends.
    const bool copied = estimator_.model().tied_embeddings && !parts_.chunks.back().has_embedding;
    return parts_.ends->head_parameters + (copied ? parts_.ends->table_parameters : 0);
  }

  // --- links and memory ---
  void share_links(const Task& task, const TaskPrice& price, Links& links) {
    int32_t& pattern = links.pattern[task.operation.index()];
    if (pattern != kNotYet) return;
    pattern = kShares;
    links.transfer_seconds[task.operation.index()] = price.moves.transfer;
    if (price.moves.transfer > kLeastTransfer * price.moves.total())
      pattern = pattern_of(task, price, links);
  }

  int32_t pattern_of(const Task& task, const TaskPrice& price, Links& links) {
    const bool receives = task.kind == TaskKind::kReceive;
    const Rank from = receives ? task.peer : task.rank, to = receives ? task.rank : task.peer;
    const int64_t place = task.peer.valid()
                              ? (int64_t{1} << 62) | int64_t{from.value} << 31 | int64_t{to.value}
                              : task.group.value;
    const auto [found, is_new] = patterns_.try_emplace({place, price.needs.part}, kShares);
    if (!is_new) return found->second;
    Transfer transfer{.seconds = 1, .needs = {}};
    if (task.peer.valid())
      transfer = ports_.message(from, to, price.needs.part, 1);
    else if (task.kind == TaskKind::kHostCopy)
      transfer.needs = {{first_host_port_ + task.rank.value, kWholeShare}};
    else if (const std::vector<Rank>& members = step_.graph.group(task.group); members.size() > 1)
      transfer = ports_.among(members, price.needs.part, 1);
    if (transfer.needs.empty()) return kShares;
    links.needs.insert(links.needs.end(), transfer.needs.begin(), transfer.needs.end());
    links.first_need.push_back(static_cast<uint32_t>(links.needs.size()));
    return found->second = static_cast<int32_t>(links.first_need.size()) - 2;
  }

  int64_t bytes_of(const graph::Slot& slot) const {
    const schedule::SlotMeaning& meaning = step_.slots[slot.shape.index()];
    const int32_t layer = meaning.segment.layer;
    if (meaning.kind == schedule::SlotKind::kKept) return std::llround(kept_bytes(layer));
    if (meaning.kind == schedule::SlotKind::kDeferred) return std::llround(dropped_bytes(layer));
    return 0;
  }

  TrainerEstimator& estimator_;
  const strategy::Strategy& s_;
  const schedule::StepGraph& step_;
  const StepParts parts_;
  const strategy::RankLayout layout_;
  const Rates rates_;
  const Ports ports_;
  const int32_t first_host_port_;
  std::vector<size_t> chunk_of_layer_;
  std::unordered_map<uint64_t, TaskPrice> known_;
  std::map<std::pair<int64_t, decltype(LevelUtilization::part)>, int32_t> patterns_;
  mutable std::map<schedule::LayerKind, schedule::LayerProgram> programs_;
};

}  // namespace

PricedStep write_priced_step(TrainerEstimator& estimator, const strategy::Strategy& s,
                             const std::vector<Rank>& ranks, double imbalance) {
  PIPER_CHECK(s.mesh.world() <= estimator.cluster().num_devices(), "more ranks than devices");
  PricedStep priced{
      schedule::write_step(estimator.model(), s, ranks, style_of(estimator.trainer())), {}};
  priced.prices = TrainerStepPricer(estimator, s, priced.step, imbalance).price();
  return priced;
}

}  // namespace piper::cost
