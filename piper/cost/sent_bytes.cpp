#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/collective/dispatch_combine_counts.h>
#include <piper/collective/known_routes.h>
#include <piper/collective/reductions.h>
#include <piper/cost/copied_experts.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/sent_bytes.h>
#include <piper/schedule/expert_copies.h>
#include <piper/schedule/step_statistics.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>

namespace piper::cost {
namespace {

using graph::Task;
using graph::TaskKind;
using schedule::SegmentKind;
using schedule::SlotKind;

class Sender {
 public:
  Sender(const schedule::StepGraph& step, const model::Model& model,
         const strategy::Strategy& strategy, const collective::Topology& topology,
         const ExpertLoad& load)
      : step_(step),
        model_(model),
        strategy_(strategy),
        layout_(strategy),
        topology_(topology),
        rows_(model, strategy, load) {
    if (strategy.all_to_all_chunk_bytes > 0) how_.chunk = strategy.all_to_all_chunk_bytes;
  }

  std::vector<SentBytes> all() {
    for (const Task& task : step_.graph.tasks()) add(task);
    return std::move(sent_);
  }

 private:
  void add(const Task& task) {
    switch (task.kind) {
      case TaskKind::kCompute:
      case TaskKind::kReceive:
        return;
      case TaskKind::kSend:
        sent_.push_back({task.id, task.peer, message_bytes(task)});
        return;
      case TaskKind::kExchangeCounts:
        return add_counts(task);
      case TaskKind::kAllToAll:
        return add_exchange(task);
      case TaskKind::kAllReduce:
        return add_all_reduce(task);
      case TaskKind::
          kAllGather:  // of copies of experts; of tokens, to everyone its own, of every slot
        if (schedule::is_of_copies(step_.segment(task).kind)) return add_copies(task);
        if (!schedule::moves_rows(step_.segment(task).kind)) return add_half(task);
        if (has_own_rows(step_.segment(task).kind)) return add_rows(task);
        return to_others(task, [&](int64_t, int64_t) {
          return std::ssize(step_.graph.reads(task)) * gathered_share_bytes(task);
        });
      case TaskKind::kReduceScatter:  // of copies; of tokens, to everyone what it keeps
        if (schedule::is_of_copies(step_.segment(task).kind)) return add_copies(task);
        if (!schedule::moves_rows(step_.segment(task).kind)) return add_half(task);
        if (has_own_rows(step_.segment(task).kind)) return add_rows(task);
        return to_others(task, [&](int64_t, int64_t) { return gathered_share_bytes(task); });
      case TaskKind::kStateCollective:  // of weights
        return add_half(task);
      case TaskKind::kRing: {  // to the next
        const std::vector<Rank>& members = step_.graph.group(task.group);
        const size_t next = (static_cast<size_t>(index_of(task)) + 1) % members.size();
        sent_.push_back({task.id, members[next], gathered_share_bytes(task)});
        return;
      }
      case TaskKind::kHostCopy:
        break;
    }
  }

  // Only who has a copy of another's expert exchanges a message with it.
  void add_copies(const Task& task) {
    const schedule::Segment& segment = step_.segment(task);
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const std::vector<int64_t> between =
        copied_bytes(model_, strategy_, segment.layer, rows_.placement(segment.layer),
                     segment.kind == SegmentKind::kCopiedGradients);
    const auto self = static_cast<size_t>(index_of(task));
    for (size_t to = 0; to < members.size(); ++to)
      if (const int64_t bytes = between[self * members.size() + to]; bytes > 0)
        sent_.push_back({task.id, members[to], bytes});
  }

  // Hidden states, or an expert that moves.
  int64_t message_bytes(const Task& task) const {
    if (task.segment.valid() && step_.segment(task).expert >= 0)
      return moved_expert_bytes(model_, step_.segment(task).layer, strategy_.precision);
    return tokens() / strategy::ranks_per_token_set(strategy_) * row_bytes();
  }

  template <class BytesTo>
  void to_others(const Task& task, const BytesTo& bytes_to) {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const int64_t self = std::ranges::find(members, task.rank) - members.begin();
    for (int64_t to = 0; to < std::ssize(members); ++to)
      if (to != self)
        sent_.push_back({task.id, members[static_cast<size_t>(to)], bytes_to(self, to)});
  }

  int64_t index_of(const Task& task) const {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    return std::ranges::find(members, task.rank) - members.begin();
  }

  // Whether each rank brings any number of rows to a gather, or keeps it of a sum.
  static bool has_own_rows(SegmentKind segment) {
    return segment == SegmentKind::kExpertTensor || segment == SegmentKind::kDividedRows;
  }

  // Ranks that share experts gather what each has received, of every slot, and keep as much of a
  // sum. Ranks that divide rows gather what each has sent.
  void add_rows(const Task& task) {
    const bool gathers = task.kind == TaskKind::kAllGather;
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const auto self = static_cast<size_t>(index_of(task));
    for (size_t to = 0; to < members.size(); ++to) {
      const int64_t rows = own_rows(task, members[gathers ? self : to]);
      const int64_t bytes =
          rows * row_bytes() * (gathers ? std::ssize(step_.graph.writes(task)) : 1);
      if (to != self && bytes > 0) sent_.push_back({task.id, members[to], bytes});
    }
  }

  SegmentWork work_of(const Task& task, Rank rank) const {
    const schedule::Segment& of = step_.segment(task);
    return rows_.exact() ? rows_.work(of.layer, task.micro_batch, layout_.member(rank), of.chunk)
                         : rows_.work(of.layer, layout_.coordinates(rank).ep, of.chunk);
  }
  int64_t own_rows(const Task& task, Rank rank) const {
    const SegmentWork work = work_of(task, rank);
    return step_.segment(task).kind == SegmentKind::kDividedRows ? work.rows : work.received_rows;
  }

  void add_counts(const Task& task) {
    if (step_.segment(task).kind == SegmentKind::kExpertTensor)
      return to_others(task, [&](int64_t, int64_t) {
        return num_chunks() * experts_a_member(task) * strategy_.mesh.ep *
               static_cast<int64_t>(sizeof(int64_t));  // by peer and expert of theirs
      });
    if (strategy::deduplicates(strategy_)) return add_routes(task);
    const collective::DispatchCombineCounts told(
        strategy_.all_to_all, index_of(task),
        collective::topology_among(topology_, step_.graph.group(task.group)));
    to_others(task, [&](int64_t, int64_t to) {
      const int64_t more = told.empty() ? 0 : std::ssize(told.to_tell(to));
      return num_chunks() * (counts_bytes(task) + more * static_cast<int64_t>(sizeof(int64_t)));
    });
  }

  collective::Units units_of(const Task& task) const {
    return {collective::topology_among(topology_, step_.graph.group(task.group)), 0};
  }

  void add_routes(const Task& task) {
    const int64_t routed = tokens() / strategy::ranks_per_routed_token_set(strategy_);
    const collective::RoutesShape shape{.num_tokens = routed,
                                        .experts_a_member = experts_a_member(task),
                                        .num_pieces = collective::dedup_pieces(
                                            strategy_.all_to_all_chunk_bytes, routed, row_bytes())};
    const collective::Units units = units_of(task);
    to_others(task, [&](int64_t self, int64_t to) {
      return collective::told_bytes(self, to, units, shape);
    });
  }

  // Tokens, and in the two exchanges of the dispatch a number for each copy.
  void add_token_exchange(const Task& task) {
    const collective::Units units = units_of(task);
    const int64_t n = units.num_members(), self = index_of(task);
    std::vector<std::vector<int64_t>> distinct;
    for (const Rank rank : step_.graph.group(task.group))
      distinct.push_back(
          rows_.distinct(step_.segment(task).layer, task.micro_batch, layout_.member(rank), units));
    const auto rows = [&](int64_t from, int64_t to) {
      return collective::dispatched_rows(
          from, units, [&](int64_t f) -> const auto& {
            return distinct[static_cast<size_t>(f)];
          })[static_cast<size_t>(to)];
    };
    const bool out = goes_to_experts(task);
    const SlotKind written = step_.meaning(step_.graph.writes(task)[0]).kind;
    const bool weighs = task.phase != graph::Phase::kRecompute &&
                        (written == SlotKind::kReceived || written == SlotKind::kRowsGradient);
    for (int64_t to = 0; to < n; ++to) {
      if (to == self) continue;
      int64_t bytes = row_bytes() * (out ? rows(self, to) : rows(to, self));
      if (weighs)
        bytes += std::max<int64_t>(element_bytes(strategy_.precision), 4) *
                 (out ? routed_rows(task, self, to) : routed_rows(task, to, self));
      if (bytes > 0)
        sent_.push_back({task.id, step_.graph.group(task.group)[static_cast<size_t>(to)], bytes});
    }
  }

  // The messages of the algorithm's own steps, summed by peer.
  void add_exchange(const Task& task) {
    if (strategy::deduplicates(strategy_)) return add_token_exchange(task);
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const bool out = goes_to_experts(task);
    const collective::MemberSteps steps = collective::all_to_all(
        strategy_.all_to_all, index_of(task), collective::topology_among(topology_, members),
        [&](int64_t from, int64_t to) {
          return out ? routed_bytes(task, from, to) : routed_bytes(task, to, from);
        },
        how_);
    std::vector<int64_t> bytes(members.size(), -1);  // -1: no message
    for (const collective::Step& step : steps.steps)
      if (step.kind == collective::StepKind::kSend) {
        int64_t& sum = bytes[static_cast<size_t>(step.peer)];
        sum = std::max<int64_t>(sum, 0) + step.source.count;
      }
    for (size_t to = 0; to < members.size(); ++to)
      if (bytes[to] >= 0) sent_.push_back({task.id, members[to], bytes[to]});
  }

  void add_all_reduce(const Task& task) {
    const ReducedBuffer buffer = schedule::moves_rows(step_.segment(task).kind)
                                     ? summed_rows(task)
                                     : reduced_buffer(step_.segment(task), model_, strategy_);
    const auto n = std::ssize(step_.graph.group(task.group));
    if (strategy_.reduction == strategy::Reduction::kHierarchical &&
        is_of_gradients(step_.segment(task).kind))
      return add_hierarchical(task, buffer);
    const auto share = [&](int64_t member) {
      return collective::reduce_share(member, n, buffer.elements).count;
    };
    to_others(task, [&](int64_t self, int64_t to) {
      return (share(to) + share(self)) * buffer.element_bytes;
    });
  }

  // Hidden states, or experts' rows, of which all members have the same ones.
  ReducedBuffer summed_rows(const Task& task) const {
    const int64_t rows = step_.segment(task).kind == SegmentKind::kExpertTensor
                             ? own_rows(task, task.rank)
                             : tokens() / strategy_.mesh.cp;
    return {rows * model_.hidden, element_bytes(strategy_.precision)};
  }

  // Half of an all-reduce sends what the steps of its algorithm send.
  void add_half(const Task& task) {
    const ReducedBuffer buffer = reduced_buffer(step_.segment(task), model_, strategy_);
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const auto& half =
        task.kind == TaskKind::kReduceScatter ? collective::reduce_scatter : collective::all_gather;
    const collective::MemberSteps steps =
        half(collective::algorithm_of(strategy_.reduction), index_of(task),
             collective::topology_among(topology_, members), buffer.elements);
    std::vector<int64_t> bytes(members.size(), -1);  // -1: no message
    for (const collective::Step& step : steps.steps) {
      if (step.kind != collective::StepKind::kSend) continue;
      int64_t& sum = bytes[static_cast<size_t>(step.peer)];
      sum = std::max<int64_t>(sum, 0) + step.source.count * buffer.element_bytes;
    }
    for (size_t to = 0; to < members.size(); ++to)
      if (bytes[to] >= 0) sent_.push_back({task.id, members[to], bytes[to]});
  }

  // What the steps send, piece by piece.
  void add_hierarchical(const Task& task, const ReducedBuffer& buffer) {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const int64_t self = index_of(task);
    const collective::Topology topology = collective::topology_among(topology_, members);
    std::vector<int64_t> bytes(members.size(), -1);
    const int64_t num = collective::num_reduction_pieces(buffer.elements);
    for (int64_t i = 0; i < num; ++i) {
      const int64_t count = collective::reduction_piece_begin(buffer.elements, i + 1, num) -
                            collective::reduction_piece_begin(buffer.elements, i, num);
      for (const collective::Step& step :
           collective::all_reduce_hierarchical(self, topology, count).steps) {
        if (step.kind != collective::StepKind::kSend) continue;
        int64_t& sum = bytes[static_cast<size_t>(step.peer)];
        sum = std::max<int64_t>(sum, 0) + step.source.count * buffer.element_bytes;
      }
    }
    for (size_t to = 0; to < members.size(); ++to)
      if (bytes[to] >= 0) sent_.push_back({task.id, members[to], bytes[to]});
  }

  // Tokens of a micro-batch.
  int64_t tokens() const { return strategy_.micro_batch_sequences * strategy_.sequence; }
  // What each rank brings to a gather of hidden states, keys and values or choices of experts, or
  // keeps of a scatter.
  int64_t gathered_share_bytes(const Task& task) const {
    const schedule::Segment& segment = step_.segment(task);
    if (schedule::gathers_choices(segment.kind)) {
      const SegmentWork work{.sequences = strategy_.micro_batch_sequences,
                             .sequence = strategy_.sequence,
                             .by = work_division(strategy_),
                             .element_bytes = element_bytes(strategy_.precision)};
      return slot_bytes(model_, step_.meaning(step_.graph.reads(task)[0]), work);
    }
    if (segment.kind == SegmentKind::kExpertTokens)
      return tokens() / strategy::ranks_per_token_set(strategy_) * row_bytes();
    if (segment.kind != SegmentKind::kContext)
      return tokens() / strategy_.mesh.ranks_per_sequence() * row_bytes();
    return tokens() / strategy_.mesh.cp * element_bytes(strategy_.precision) *
           key_value_width(model_.layers[static_cast<size_t>(segment.layer)].attention,
                           strategy_.mesh.tp);
  }

  int64_t num_chunks() const { return strategy::num_moe_chunks(strategy_); }

  int64_t row_bytes() const { return model_.hidden * element_bytes(strategy_.precision); }

  int64_t counts_bytes(const Task& task) const {
    return experts_a_member(task) * static_cast<int64_t>(sizeof(int64_t));
  }

  int64_t experts_a_member(const Task& task) const {
    const auto layer = static_cast<size_t>(step_.segment(task).layer);
    return strategy::num_places(strategy_, model_.layers[layer].feed_forward.num_experts) /
           strategy_.mesh.ep;
  }

  // Dispatch, and the backward of combine.
  bool goes_to_experts(const Task& task) const {
    const SlotKind written = step_.meaning(step_.graph.writes(task)[0]).kind;
    return written == SlotKind::kReceived || written == SlotKind::kExpertRowsGradient;
  }

  // The rows of member `from`'s tokens that go to the experts of `member`.
  int64_t routed_rows(const Task& task, int64_t from, int64_t member) const {
    const std::vector<Rank>& members = step_.graph.group(task.group);
    const int64_t to = layout_.coordinates(members[static_cast<size_t>(member)]).ep;
    const auto [layer, chunk] = std::pair(step_.segment(task).layer, step_.segment(task).chunk);
    if (rows_.exact()) {
      const Rank rank = members[static_cast<size_t>(from)];
      return rows_.rows_between(layer, task.micro_batch, layout_.member(rank), to, chunk);
    }
    if (const int64_t peers = strategy::grouped_peers(strategy_); peers > 0) {
      const int64_t self = layout_.coordinates(members[static_cast<size_t>(from)]).ep;
      if (!strategy::is_in_group(peers, strategy::token_chunk(peers, num_chunks(), chunk - 1), self,
                                 to))
        return 0;
      return rows_.rows_of_pair(layer, to);
    }
    if (rows_.balanced()) return rows_.work(layer, 0, chunk).rows / strategy_.mesh.ep;
    return rows_.rows_to(layer, to, chunk);
  }
  int64_t routed_bytes(const Task& task, int64_t from, int64_t to) const {
    return row_bytes() * routed_rows(task, from, to);
  }

  const schedule::StepGraph& step_;
  const model::Model& model_;
  const strategy::Strategy& strategy_;
  const strategy::RankLayout layout_;
  const collective::Topology& topology_;
  ExpertRows rows_;
  collective::AllToAllOptions how_;
  std::vector<SentBytes> sent_;
};

}  // namespace

std::vector<SentBytes> sent_bytes(const schedule::StepGraph& step, const model::Model& model,
                                  const strategy::Strategy& strategy,
                                  const collective::Topology& topology, const ExpertLoad& load) {
  return Sender(step, model, strategy, topology, load).all();
}

namespace {

// The sequences of a micro-batch of which a rank routes tokens.
int64_t counted_sequences(const strategy::Strategy& s) {
  return SegmentWork{.sequences = s.micro_batch_sequences, .by = work_division(s)}
      .counted_sequences();
}

}  // namespace

bool is_of_gradients(SegmentKind kind) {
  return kind != SegmentKind::kStatistics && kind != SegmentKind::kSequenceCounts &&
         !schedule::moves_rows(kind);
}

ReducedBuffer reduced_buffer(const schedule::Segment& segment, const model::Model& model,
                             const strategy::Strategy& strategy) {
  const strategy::StateBytes of = state_bytes(strategy.precision);
  const int64_t gradient = of.gradient;
  switch (segment.kind) {
    case SegmentKind::kDenseGradients:
    case SegmentKind::kDenseWeights: {
      const int64_t element = segment.kind == SegmentKind::kDenseWeights ? of.weight : gradient;
      if (strategy.mesh.tp > 1) return {part_parameters(model, segment.layer, strategy), element};
      return {whole_parameters(model, segment.layer, strategy), element};
    }
    case SegmentKind::kStageGradients:
    case SegmentKind::kStageWeights:
      return {whole_parameters(model, segment.layer, strategy),
              segment.kind == SegmentKind::kStageWeights ? of.weight : gradient};
    case SegmentKind::kSequenceCounts:
      return {counted_sequences(strategy) *
                  model.layers[static_cast<size_t>(segment.layer)].feed_forward.num_experts,
              sizeof(int64_t)};
    case SegmentKind::kExpertWeights:
      if (strategy::compresses_experts(strategy))
        return {coded_bytes(model, strategy, segment.layer) / kCodedElement, kCodedElement};
      return {expert_parameters(model, segment.layer, strategy.mesh.ranks_per_expert_set()),
              of.weight};
    case SegmentKind::kExpertGradients:
      return {expert_parameters(model, segment.layer, strategy.mesh.ranks_per_expert_set()),
              gradient};
    case SegmentKind::kTiedEmbedding:
      return {model.vocabulary * model.hidden, gradient};
    case SegmentKind::kStatistics:
      return {schedule::num_statistics(model, strategy), sizeof(double)};
    case SegmentKind::kEmbedding:
    case SegmentKind::kAttention:
    case SegmentKind::kProjection:
    case SegmentKind::kRingStep:
    case SegmentKind::kDenseMlp:
    case SegmentKind::kRouteOnly:
    case SegmentKind::kGate:
    case SegmentKind::kSharedExperts:
    case SegmentKind::kExperts:
    case SegmentKind::kUnpermute:
    case SegmentKind::kHead:
    case SegmentKind::kMtpProjection:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kOptimizer:
    case SegmentKind::kTensor:
    case SegmentKind::kTensorChoices:
    case SegmentKind::kContextChoices:
    case SegmentKind::kContext:
    case SegmentKind::kExpertTensor:
    case SegmentKind::kExpertTokens:
    case SegmentKind::kDividedRows:
    case SegmentKind::kCopiedWeights:
    case SegmentKind::kCopiedGradients:
    case SegmentKind::kHostCopy:
    case SegmentKind::kUpdateLayer:
    case SegmentKind::kTakeExpert:
    case SegmentKind::kPutExpert:
    case SegmentKind::kKeepGradients:
    case SegmentKind::kDropWeights:
    case SegmentKind::kWait:
      break;
  }
  PIPER_CHECK(false, std::string("nothing to reduce in ") + schedule::name(segment.kind));
  return {};
}

}  // namespace piper::cost
