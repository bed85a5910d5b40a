#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/known_routes.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/copied_experts.h>
#include <piper/cost/dedup_all_to_all.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/grouped_choice.h>
#include <piper/cost/host_link.h>
#include <piper/cost/prices.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/sent_bytes.h>
#include <piper/schedule/expert_copies.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>

namespace piper::cost {
namespace {

using graph::Phase;
using graph::Task;
using graph::TaskKind;
using schedule::Segment;
using schedule::SegmentKind;
using schedule::SlotKind;

enum class Asked { kAll, kBytes };

class StepPricer {
 public:
  StepPricer(const schedule::StepGraph& step, const model::Model& model,
             const strategy::Strategy& strategy, const cluster::Cluster& cluster,
             const ExpertLoad& load, Asked asked)
      : step_(step),
        model_(model),
        strategy_(strategy),
        layout_(strategy),
        cluster_(cluster),
        rows_(model, strategy, load),
        grouped_(grouped_choice_of(cluster, strategy.precision)),
        with_seconds_(asked == Asked::kAll) {
    if (!with_seconds_) return;
    ports_.emplace(cluster, participants(step.graph));
    shards_.resize(static_cast<size_t>(strategy.mesh.pp));
    for (int64_t stage = 0; stage < strategy.mesh.num_virtual_stages(); ++stage) {
      RankParameters& here = shards_[static_cast<size_t>(
          schedule::rank_of_stage(strategy.schedule, strategy.mesh.pp, stage))];
      const RankParameters more = rank_parameters(model, strategy, stage);
      here.dense += more.dense;
      here.parts += more.parts;
      here.experts += more.experts;
    }
    for (int64_t stage = 0; stage < strategy.mesh.pp; ++stage)
      optimized_.push_back(of_rank(layout_.rank(stage, 0), optimized_parameters));
  }

  Prices price() {
    Prices prices;
    prices.cores_per_node = cluster_.cores_per_node;
    prices.core_hand_over_seconds = core_hand_over_seconds(cluster_);
    prices.links.capacity = ports_->capacity();
    prices.links.first_need = {0};
    prices.links.pattern.assign(static_cast<size_t>(step_.graph.num_operations()), kNotYet);
    prices.links.transfer_seconds.resize(static_cast<size_t>(step_.graph.num_operations()));
    for (int64_t rank = 0; rank < strategy_.mesh.world(); ++rank) {
      prices.node_of_rank.push_back(static_cast<int32_t>(rank / cluster_.devices_per_node()));
      const strategy::StateBytes bytes = state_bytes(strategy_.precision);
      // Buffers of divided gradients are slots.
      prices.static_bytes.push_back(
          of_rank(Rank(rank), weight_parameters) * bytes.weight +
          of_rank(Rank(rank), gradient_parameters) * bytes.gradient +
          of_rank(Rank(rank), copied_parameters) * (bytes.weight + bytes.gradient) +
          (strategy::offloads_optimizer(strategy_.offload)
               ? 0
               : of_rank(Rank(rank), optimized_parameters) * bytes.optimizer));
    }
    for (const Task& task : step_.graph.tasks()) {
      const TaskPrice& p = of(task);
      prices.seconds.push_back(p.seconds);
      prices.transient_bytes.push_back(p.transient_bytes);
      if (task.operation.valid()) share_links(task, p.seconds, prices.links);
    }
    for (const graph::Slot& slot : step_.graph.slots()) prices.slot_bytes.push_back(bytes_of(slot));
    return prices;
  }

  StepBytes bytes() {
    StepBytes bytes;
    for (const Task& task : step_.graph.tasks())
      bytes.transient_bytes.push_back(of(task).transient_bytes);
    for (const graph::Slot& slot : step_.graph.slots()) bytes.slot_bytes.push_back(bytes_of(slot));
    return bytes;
  }

 private:
  static constexpr int32_t kNotYet = -2;  // a pattern

  static std::vector<char> participants(const graph::Graph& graph) {
    std::vector<char> is_here;
    for (int64_t rank = 0; rank < graph.num_ranks(); ++rank)
      is_here.push_back(graph.takes_part(Rank(rank)) ? 1 : 0);
    return is_here;
  }

  struct TaskPrice {
    double seconds = 0;
    int64_t transient_bytes = 0;
  };

  // What prices are known by: what is done, and where.
  struct PriceKey {
    uint64_t what = 0;
    int64_t place = 0;
    auto operator<=>(const PriceKey&) const = default;
    struct Hash {
      size_t operator()(const PriceKey& key) const {
        return (key.what * 0x9e3779b97f4a7c15) ^ std::hash<int64_t>{}(key.place);
      }
    };
  };
  static uint64_t what(const Task& task) {
    return static_cast<uint64_t>(task.kind) << 48 | static_cast<uint64_t>(task.phase) << 40 |
           static_cast<uint64_t>(task.segment.value + 1);
  }

  const RankParameters& shard(Rank rank) const {
    return shards_[static_cast<size_t>(layout_.stage(rank))];
  }
  // Ranks with the same rows have the same prices: with a balanced load all of them, with one
  // distribution those of an ep index, and where all rows are known none in any other micro-batch.
  int64_t place_of(Rank rank, int32_t micro_batch) const {
    if (rows_.balanced()) return 0;
    if (!rows_.exact()) return layout_.coordinates(rank).ep;
    return (int64_t{micro_batch} + 1) * layout_.num_members() + layout_.member(rank);
  }
  SegmentWork work_of(const Segment& segment, int64_t place) const {
    SegmentWork work =
        rows_.exact()
            ? rows_.work(segment.layer, static_cast<int32_t>(place / layout_.num_members()) - 1,
                         place % layout_.num_members(), segment.chunk)
            : rows_.work(segment.layer, place, segment.chunk);
    if (grouped_.is_measured()) work.grouped = &grouped_;
    return work;
  }

  const TaskPrice& of(const Task& task) {
    if (task.kind == TaskKind::kHostCopy) return copy_ = host_copy(task);
    // What a price depends on: compute on segment, phase, tape, rows; communication on segment,
    // group (or the two ends), rows of all.
    const bool compute = task.kind == TaskKind::kCompute;
    const bool is_by_member =
        rows_.exact() && task.group.valid() &&
        (step_.segment(task).kind == SegmentKind::kExpertTensor ||
         (task.kind == TaskKind::kAllToAll && strategy::fuses_exchange(strategy_)));
    const int64_t place = (compute && task.phase != Phase::kUpdate) || is_by_member
                              ? place_of(task.rank, task.micro_batch)
                          : task.group.valid() ? group_place(task)
                          : task.peer.valid()  ? ends(task)
                                               : layout_.stage(task.rank);
    const auto [found, is_new] = known_.try_emplace({what(task) << 1 | writes_tape(task), place});
    if (is_new) found->second = make(task);
    return found->second;
  }

  // Where the operation's bytes go, once for all operations that send alike.
  void share_links(const Task& task, double seconds, Links& links) {
    int32_t& pattern = links.pattern[task.operation.index()];
    if (pattern != kNotYet) return;
    if (task.kind == TaskKind::kHostCopy) {  // nobody else's link
      pattern = -1;
      return;
    }
    const bool message = task.peer.valid();
    const Rank from = task.kind == TaskKind::kReceive ? task.peer : task.rank;
    const Rank to = task.kind == TaskKind::kReceive ? task.rank : task.peer;
    const PriceKey key =
        message
            ? PriceKey{static_cast<uint64_t>(from.value) << 32 | static_cast<uint64_t>(to.value),
                       -1}  // a group's place is not below 0
            : PriceKey{what(task), group_place(task)};
    const std::pair at{key, message && is_of_expert(task) ? message_bytes(task) : 0.0};
    const auto [found, is_new] = transfers_.try_emplace(at, -1, 0.0);
    if (is_new) {
      const Transfer transfer =
          message ? ports_->message(from, to, message_bytes(task)) : transfer_of(task);
      if (transfer.seconds > kLeastTransfer * seconds) {
        found->second = {std::ssize(links.first_need) - 1, std::min(transfer.seconds, seconds)};
        links.needs.insert(links.needs.end(), transfer.needs.begin(), transfer.needs.end());
        links.first_need.push_back(static_cast<uint32_t>(links.needs.size()));
      }
    }
    pattern = static_cast<int32_t>(found->second.first);
    links.transfer_seconds[task.operation.index()] = found->second.second;
  }

  Transfer transfer_of(const Task& task) const {
    if (schedule::is_of_copies(step_.segment(task).kind)) {
      const std::vector<int64_t> bytes = copied_bytes_between(task);
      return ports_->all_to_all(step_.graph.group(task.group),
                                std::vector<double>(bytes.begin(), bytes.end()));
    }
    if (task.kind == TaskKind::kRing) {
      const std::vector<Rank>& members = step_.graph.group(task.group);
      std::vector<double> between(members.size() * members.size());
      for (size_t i = 0; i < members.size(); ++i)
        between[i * members.size() + (i + 1) % members.size()] = gathered_bytes(task);
      return ports_->all_to_all(members, between);
    }
    const bool is_half = task.kind == TaskKind::kReduceScatter ||
                         task.kind == TaskKind::kAllGather ||
                         task.kind == TaskKind::kStateCollective;
    if (task.kind != TaskKind::kAllToAll && schedule::moves_rows(step_.segment(task).kind))
      return ports_->all_reduce(group(task), gathered_bytes(task) / (is_half ? 2 : 1));
    if (task.kind == TaskKind::kAllReduce || is_half) {
      Transfer transfer = ports_->all_reduce(group(task), reduced_bytes(task), reduction_of(task));
      if (is_half) transfer.seconds /= 2;
      return transfer;
    }
    if (task.kind != TaskKind::kAllToAll) return {};
    if (is_of_peers())
      return ports_->all_to_all(step_.graph.group(task.group), bytes_between(task));
    if (rows_.balanced()) return ports_->all_to_all(group(task), pair_bytes(task));
    if (!rows_.exact()) return ports_->all_to_all(group(task), bytes_to(task));
    return ports_->all_to_all(step_.graph.group(task.group), bytes_between(task));
  }

  int64_t group_place(const Task& task) const {
    if (!rows_.exact()) return task.group.value;
    return int64_t{task.group.value} * (strategy_.num_micro_batches + 1) + task.micro_batch + 1;
  }

  // A message's price depends on its level alone.
  int64_t ends(const Task& task) const {
    return static_cast<int64_t>(cluster_.common_level(task.rank.value, task.peer.value));
  }

  bool writes_tape(const Task& task) const {
    for (const graph::SlotId slot : step_.graph.writes(task))
      if (step_.meaning(slot).kind == SlotKind::kTape) return true;
    return false;
  }

  // What seconds() says; 0 where nobody asks for them.
  template <class Seconds>
  double if_asked(Seconds seconds) const {
    return with_seconds_ ? seconds() : 0;
  }

  // Whether it has bytes of its own while it runs, by its kind.
  bool has_bytes(const Task& task) const {
    switch (task.kind) {
      case TaskKind::kCompute:
        return task.phase != Phase::kUpdate &&
               step_.segment(task).kind != SegmentKind::kKeepGradients;
      case TaskKind::kAllToAll:
        return !is_of_peers();
      case TaskKind::kAllGather:
      case TaskKind::kReduceScatter:
      case TaskKind::kAllReduce:
        return true;
      default:
        return false;
    }
  }

  TaskPrice make(const Task& task) const {
    if (!with_seconds_ && !has_bytes(task)) return {};
    switch (task.kind) {
      case TaskKind::kCompute:
        return task.phase == Phase::kUpdate ? update(task) : compute(task);
      case TaskKind::kSend:
      case TaskKind::kReceive:
        return {point_to_point_seconds(cluster_, task.rank.value, task.peer.value,
                                       message_bytes(task))};
      case TaskKind::kExchangeCounts: {
        const Segment& segment = step_.segment(task);
        const int64_t experts = strategy::num_places(
            strategy_, model_.layers[static_cast<size_t>(segment.layer)].feed_forward.num_experts);
        const bool is_by_peer = segment.kind == SegmentKind::kExpertTensor;
        return {exchange_counts_seconds(cluster_, group(task),
                                        strategy::num_moe_chunks(strategy_) *
                                            (is_by_peer ? experts : experts / strategy_.mesh.ep))};
      }
      case TaskKind::kAllToAll:
        return all_to_all(task);
      case TaskKind::kAllGather:
        if (schedule::is_of_copies(step_.segment(task).kind)) return copies(task);
        if (schedule::moves_rows(step_.segment(task).kind)) return rows_collective(task);
        return weights_gather(task);
      case TaskKind::kReduceScatter:
        if (schedule::is_of_copies(step_.segment(task).kind)) return copies(task);
        if (schedule::moves_rows(step_.segment(task).kind)) return rows_collective(task);
        return {if_asked([&] {
          return reduce_scatter_seconds(cluster_, group(task), reduced_bytes(task),
                                        reduction_of(task));
        })};
      case TaskKind::kStateCollective:
        PIPER_CHECK(!schedule::moves_rows(step_.segment(task).kind), "a gather of weights");
        return {all_gather_seconds(cluster_, group(task), reduced_bytes(task), reduction_of(task))};
      case TaskKind::kHostCopy:
        break;  // by the bytes of its slots
      case TaskKind::kRing:
        return {ring_hop_seconds(cluster_, group(task), gathered_bytes(task))};
      case TaskKind::kAllReduce:
        if (schedule::moves_rows(step_.segment(task).kind)) return rows_collective(task);
        return {if_asked([&] {
          return all_reduce_seconds(cluster_, group(task), reduced_bytes(task), reduction_of(task));
        })};
    }
    return {};
  }

  // Experts that travel as residuals have messages of their own (strategy/residual_code.h).
  TaskPrice weights_gather(const Task& task) const {
    const double moved = if_asked([&] {
      return all_gather_seconds(cluster_, group(task), reduced_bytes(task), reduction_of(task));
    });
    const Segment& segment = step_.segment(task);
    if (segment.kind != SegmentKind::kExpertWeights || !strategy::compresses_experts(strategy_))
      return {moved};
    const int64_t elements =
        expert_parameters(model_, segment.layer, strategy_.mesh.ranks_per_expert_set());
    const double found = strategy::offloads_optimizer(strategy_.offload)
                             ? residuals_found_seconds(cluster_, strategy_, elements)
                             : 0;  // behind the update
    return {moved + found + residuals_put_seconds(cluster_, strategy_, elements),
            coded_bytes(model_, strategy_, segment.layer)};
  }

  TaskPrice host_copy(const Task& task) {
    int64_t bytes = 0;
    for (const auto slots : {step_.graph.reads(task), step_.graph.writes(task)})
      for (const graph::SlotId slot : slots) bytes += bytes_of(step_.graph.slot(slot));
    return {static_cast<double>(bytes) / host_bytes_per_second(cluster_)};
  }

  // The price of sending weights to copies of experts, or their gradients back.
  TaskPrice copies(const Task& task) const {
    const int32_t layer = step_.segment(task).layer;
    const bool homeward = step_.segment(task).kind == SegmentKind::kCopiedGradients;
    return {if_asked([&] {
              return copied_seconds(cluster_, step_.graph.group(task.group),
                                    copied_bytes_between(task));
            }),
            homeward ? copied_scratch(model_, strategy_, layer, rows_.placement(layer)) : 0};
  }
  std::vector<int64_t> copied_bytes_between(const Task& task) const {
    const Segment& segment = step_.segment(task);
    return copied_bytes(model_, strategy_, segment.layer, rows_.placement(segment.layer),
                        segment.kind == SegmentKind::kCopiedGradients);
  }

  // A gather and a scatter move as much as the two halves of a direct all-reduce.
  TaskPrice rows_collective(const Task& task) const {
    const Segment& segment = step_.segment(task);
    const double both =
        if_asked([&] { return all_reduce_seconds(cluster_, group(task), gathered_bytes(task)); });
    return {task.kind == TaskKind::kAllReduce ? both : both / 2,
            task.kind == TaskKind::kAllGather
                ? 0
                : sum_scratch(model_, segment,
                              work_of(segment, place_of(task.rank, task.micro_batch)))};
  }

  // Bytes of all members, in all slots: hidden states, experts' rows, choices, or keys and values.
  double gathered_bytes(const Task& task) const {
    const Segment& segment = step_.segment(task);
    const SegmentWork work = work_of(segment, place_of(task.rank, task.micro_batch));
    if (schedule::gathers_choices(segment.kind))
      return static_cast<double>(
          slot_bytes(model_, {SlotKind::kTokenChoices, {segment.kind, segment.layer}}, work));
    if (segment.kind == SegmentKind::kContext)
      return static_cast<double>(slot_bytes(
          model_, {SlotKind::kKeysAndValues, {SegmentKind::kContext, segment.layer}}, work));
    return static_cast<double>(step_.graph.writes(task).size()) *
           static_cast<double>(rows_of_all(segment.kind, work)) * row_bytes();
  }

  Group group(const Task& task) const { return group_of(step_.graph.group(task.group)); }

  double hidden_bytes() const {
    const SegmentWork work = work_of({SegmentKind::kEmbedding, -1}, 0);
    return static_cast<double>(
        slot_bytes(model_, {SlotKind::kHidden, {SegmentKind::kEmbedding, -1}}, work));
  }

  // Hidden states, or an expert that moves.
  double message_bytes(const Task& task) const {
    if (!is_of_expert(task)) return hidden_bytes();
    return static_cast<double>(moved_parameters(task) * state_bytes(strategy_.precision).moved());
  }
  // Parameters that a task of a migration moves.
  int64_t moved_parameters(const Task& task) const {
    const auto slots =
        step_.graph.reads(task).empty() ? step_.graph.writes(task) : step_.graph.reads(task);
    return step_.meaning(slots.front()).parameters;
  }
  bool is_of_expert(const Task& task) const {
    return task.segment.valid() && step_.segment(task).expert >= 0;
  }

  // Elements of one share of a layer's buffers, as reductions cut them: the first member's.
  double own_gradients(const Task& task) const {
    int64_t own = 0;
    for (const graph::SlotId slot : step_.graph.reads(task)) {
      const Segment& buffer = step_.meaning(slot).segment;
      const strategy::Members group = layout_.members(
          schedule::axis_of(TaskKind::kReduceScatter, buffer.kind), layout_.member(task.rank));
      own += collective::reduce_share(0, group.size,
                                      reduced_buffer(buffer, model_, strategy_).elements)
                 .count;
    }
    return static_cast<double>(own);
  }

  TaskPrice compute(const Task& task) const {
    const Segment& segment = step_.segment(task);
    if (segment.kind == SegmentKind::kDropWeights) return {};
    if (segment.kind == SegmentKind::kKeepGradients)
      return {update_seconds(segment.kind, own_gradients(task), cluster_, strategy_.precision)};
    const SegmentWork work = work_of(segment, place_of(task.rank, task.micro_batch));
    const SegmentBytes bytes = segment_bytes(model_, segment, work);
    const double seconds = if_asked([&] {
      return segment_seconds(model_, segment, task.phase, work, cluster_, strategy_.precision);
    });
    if (task.phase == Phase::kBackwardInput) return {seconds, bytes.input_transient};
    if (task.phase == Phase::kBackwardWeights) return {seconds, bytes.weights_transient};
    if (graph::is_backward(task.phase)) return {seconds, bytes.backward_transient};
    // Without a tape its parts still exist for a moment.
    return {seconds, bytes.forward_transient + (writes_tape(task) ? 0 : bytes.tape)};
  }

  // Sums what `of_stage` says over all virtual stages of the rank.
  template <class Parameters>
  int64_t of_rank(Rank rank, Parameters of_stage) const {
    int64_t parameters = 0;
    for (int64_t stage = 0; stage < strategy_.mesh.num_virtual_stages(); ++stage)
      if (schedule::rank_of_stage(strategy_.schedule, strategy_.mesh.pp, stage) ==
          layout_.stage(rank))
        parameters += of_stage(model_, strategy_, stage, layout_.member(rank));
    return parameters;
  }

  // Parameters of the layer whose optimizer states the rank has; at most one of its virtual stages
  // has the layer.
  int64_t optimized_by(Rank rank, int64_t member, int32_t layer) const {
    int64_t parameters = 0;
    for (const schedule::RankChunk& chunk : schedule::chunks_of(strategy_, layout_.stage(rank)))
      parameters += optimized_of_layer(model_, strategy_, chunk.stage, member, layer);
    return parameters;
  }

  TaskPrice update(const Task& task) const {
    const SegmentKind kind = step_.segment(task).kind;
    const RankParameters& held = shard(task.rank);
    if (is_of_expert(task))
      return {update_seconds(kind, static_cast<double>(moved_parameters(task)), cluster_,
                             strategy_.precision)};
    const bool is_with_host = strategy::offloads_optimizer(strategy_.offload);
    const double parameters =
        kind == SegmentKind::kGradientNorm ? held.of_norm(strategy_.mesh)
        : kind == SegmentKind::kUpdateLayer
            ? static_cast<double>(optimized_by(task.rank, 0, step_.segment(task).layer))
        : is_with_host
            ? 0.0  // its layers' updates follow
            : static_cast<double>(optimized_[static_cast<size_t>(layout_.stage(task.rank))]);
    const double found = kind == SegmentKind::kOptimizer && !is_with_host
                             ? residuals_found_seconds(cluster_, strategy_, held.experts)
                             : 0;
    return {update_seconds(kind, parameters, cluster_, strategy_.precision) + found};
  }

  // Towards the experts and back move the same rows, so all four exchanges of a layer cost the same
  // up to which side counts as sender.
  TaskPrice all_to_all(const Task& task) const {
    const AllToAllConfig config = all_to_all_of(strategy_);
    if (is_of_peers()) {
      const std::vector<double> to = bytes_to(task);
      return {all_to_all_seconds(cluster_, step_.graph.group(task.group), bytes_between(task)) *
              cost_over_flat(cluster_, group(task), config, std::span<const double>(to))};
    }
    if (rows_.balanced()) {
      const double bytes = pair_bytes(task);
      return {if_asked([&] {
                return all_to_all_seconds(cluster_, group(task), bytes) *
                       cost_over_flat(cluster_, group(task), config, bytes, routed(task));
              }),
              scratch(task, config, bytes)};
    }
    const std::vector<double> to = bytes_to(task);
    const double mean = std::accumulate(to.begin(), to.end(), 0.0) / static_cast<double>(to.size());
    if (!rows_.exact())
      return {if_asked([&] {
                return all_to_all_seconds(cluster_, group(task), std::span<const double>(to)) *
                       cost_over_flat(cluster_, group(task), config, std::span<const double>(to),
                                      routed(task));
              }),
              scratch(task, config, mean)};
    return {
        if_asked([&] {
          return all_to_all_seconds(cluster_, step_.graph.group(task.group), bytes_between(task)) *
                 (strategy::deduplicates(strategy_)
                      ? over_ports(task, mean)
                      : cost_over_flat(cluster_, group(task), config, std::span<const double>(to)));
        }),
        scratch(task, config, mean)};
  }

  Routed routed(const Task& task) const {
    const int32_t layer = step_.segment(task).layer;
    return {&model_.layers[static_cast<size_t>(layer)].feed_forward, row_bytes()};
  }

  // Where tokens travel: what the steps lose against the busiest port, whose bytes are known.
  double over_ports(const Task& task, double pair_bytes) const {
    const ExchangeSite site(cluster_, group(task));
    const DedupSeconds dedup = dedup_seconds(site, strategy_.all_to_all_chunk_bytes,
                                             {pair_bytes, 1, routed(task).on(site)});
    return std::max(1.0, dedup.mean() / dedup.ports);
  }

  int64_t scratch(const Task& task, const AllToAllConfig& config, double bytes) const {
    const int64_t copies = fused_exchange_scratch(
        model_, work_of(step_.segment(task), place_of(task.rank, task.micro_batch)));
    if (is_plain(config.algorithm)) return copies;
    const ExchangeSite site(cluster_, group(task));
    return copies + std::llround(scratch_bytes(site, config, bytes, routed(task).on(site)));
  }

  double row_bytes() const {
    return static_cast<double>(model_.hidden) *
           static_cast<double>(element_bytes(strategy_.precision));
  }

  double pair_bytes(const Task& task) const {
    const SegmentWork work = work_of(step_.segment(task), 0);
    return static_cast<double>(work.rows * work.receivers()) * row_bytes() /
           static_cast<double>(step_.graph.group(task.group).size());
  }

  // Whether a chunk's rows go to some peers alone.
  bool is_of_peers() const { return strategy::grouped_peers(strategy_) > 0; }

  int64_t receivers() const { return strategy::fuses_exchange(strategy_) ? strategy_.mesh.etp : 1; }

  // From any member to each; where all rows are known, the mean of all members.
  std::vector<double> bytes_to(const Task& task) const {
    const int64_t size = std::ssize(step_.graph.group(task.group));
    std::vector<double> bytes(static_cast<size_t>(size));
    if (rows_.exact() || is_of_peers()) {
      const std::vector<double> between = copy_bytes_between(task);
      for (size_t i = 0; i < between.size(); ++i)
        bytes[i % bytes.size()] += between[i] / static_cast<double>(size);
      return bytes;
    }
    const Segment& segment = step_.segment(task);
    for (int64_t to = 0; to < size; ++to)
      bytes[static_cast<size_t>(to)] =
          row_bytes() *
          static_cast<double>(rows_.rows_to(segment.layer, to / receivers(), segment.chunk));
    return bytes;
  }

  // From every member to every member, row-major, where all rows are known.
  std::vector<double> bytes_between(const Task& task) const {
    return strategy::deduplicates(strategy_) ? token_bytes_between(task) : copy_bytes_between(task);
  }

  std::vector<double> copy_bytes_between(const Task& task) const {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const Segment& segment = step_.segment(task);
    const strategy::TokenChunk distances =
        is_of_peers()
            ? strategy::token_chunk(strategy_.mesh.ep, strategy::num_moe_chunks(strategy_),
                                    segment.chunk - 1)
            : strategy::TokenChunk{};
    std::vector<double> bytes;
    for (int64_t from = 0; from < std::ssize(members); ++from)
      for (int64_t to = 0; to < std::ssize(members); ++to) {
        const int64_t rows =
            rows_.exact() ? rows_.rows_between(segment.layer, task.micro_batch,
                                               layout_.member(members[static_cast<size_t>(from)]),
                                               to / receivers(), segment.chunk)
            : strategy::is_in_group(strategy_.mesh.ep, distances, from, to)
                ? rows_.rows_of_pair(segment.layer, to)
                : 0;
        bytes.push_back(row_bytes() * static_cast<double>(rows));
      }
    return bytes;
  }

  // Likewise, of a dispatch: rows that cross, and rows that are handed on inside.
  std::vector<double> token_bytes_between(const Task& task) const {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const int32_t layer = step_.segment(task).layer;
    std::vector<int64_t> devices;
    for (const Rank member : members) devices.push_back(member.value);
    const collective::Units units(topology_of(cluster_, devices), 0);
    std::vector<std::vector<int64_t>> distinct;
    for (const Rank member : members)
      distinct.push_back(rows_.distinct(layer, task.micro_batch, layout_.member(member), units));
    std::vector<double> bytes;
    for (int64_t from = 0; from < std::ssize(members); ++from)
      for (const int64_t rows :
           collective::dispatched_rows(from, units, [&](int64_t m) -> const std::vector<int64_t>& {
             return distinct[static_cast<size_t>(m)];
           }))
        bytes.push_back(row_bytes() * static_cast<double>(rows));
    return bytes;
  }

  strategy::Reduction reduction_of(const Task& task) const {
    return is_of_gradients(step_.segment(task).kind) ? strategy_.reduction
                                                     : strategy::Reduction::kDirect;
  }

  double reduced_bytes(const Task& task) const {
    return static_cast<double>(reduced_buffer(step_.segment(task), model_, strategy_).bytes());
  }

  int64_t bytes_of(const graph::Slot& slot) {
    if (const schedule::SlotMeaning& meaning = step_.slots[slot.shape.index()];
        meaning.kind == SlotKind::kOptimizerStates)
      return state_bytes(strategy_.precision).optimizer *
             optimized_by(slot.rank, layout_.member(slot.rank), meaning.segment.layer);
    const uint64_t key = (static_cast<uint64_t>(slot.shape.value) << 32) |
                         static_cast<uint64_t>(place_of(slot.rank, slot.micro_batch));
    const auto [found, is_new] = slot_bytes_.try_emplace(key);
    if (is_new) {
      const schedule::SlotMeaning& meaning = step_.slots[slot.shape.index()];
      if (meaning.kind == SlotKind::kExpertState)
        return found->second = meaning.parameters * state_bytes(strategy_.precision).moved();
      if (meaning.kind == SlotKind::kGradients || meaning.kind == SlotKind::kWeights)
        return found->second = reduced_buffer(meaning.segment, model_, strategy_).bytes();
      found->second = slot_bytes(model_, meaning,
                                 work_of(meaning.segment, place_of(slot.rank, slot.micro_batch)));
    }
    return found->second;
  }

  const schedule::StepGraph& step_;
  const model::Model& model_;
  const strategy::Strategy& strategy_;
  const strategy::RankLayout layout_;
  const cluster::Cluster& cluster_;
  ExpertRows rows_;
  GroupedChoice grouped_;
  std::vector<RankParameters> shards_;  // by stage
  std::vector<int64_t> optimized_;      // by stage: of its first member, which has the most
  const bool with_seconds_;
  std::optional<Ports> ports_;  // with seconds
  TaskPrice copy_;
  std::unordered_map<PriceKey, TaskPrice, PriceKey::Hash> known_;
  // Pattern and seconds, by what an operation is and the bytes of a message.
  std::map<std::pair<PriceKey, double>, std::pair<int64_t, double>> transfers_;
  std::unordered_map<uint64_t, int64_t> slot_bytes_;
};

}  // namespace

Prices price(const schedule::StepGraph& step, const model::Model& model,
             const strategy::Strategy& strategy, const cluster::Cluster& cluster,
             const ExpertLoad& load) {
  PIPER_CHECK(strategy.mesh.world() <= cluster.num_devices(), "more ranks than devices");
  compute_of(cluster, strategy.precision);  // complains when it is not there
  return StepPricer(step, model, strategy, cluster, load, Asked::kAll).price();
}

StepBytes step_bytes(const schedule::StepGraph& step, const model::Model& model,
                     const strategy::Strategy& strategy, const cluster::Cluster& cluster,
                     const ExpertLoad& load) {
  return StepPricer(step, model, strategy, cluster, load, Asked::kBytes).bytes();
}

}  // namespace piper::cost
