#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/schedule/migration.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

namespace piper::schedule {
namespace {

using balance::ExpertMove;
using graph::OperationId;
using graph::Phase;
using graph::SegmentId;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;

class MigrationWriter {
 public:
  MigrationWriter(const model::Model& model, const strategy::Strategy& strategy)
      : model_(model), strategy_(strategy), layout_(strategy) {
    step_.graph = graph::Graph(layout_.num_ranks());
    last_put_.assign(static_cast<size_t>(layout_.num_ranks()), TaskId::none());
  }

  void add(int32_t layer, const std::vector<ExpertMove>& moves) {
    PIPER_CHECK(layer >= 0 && layer < std::ssize(model_.layers) &&
                    model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe(),
                "experts move in layers that have some");
    const int64_t stage = rank_of_stage(strategy_.schedule, strategy_.mesh.pp, stage_of(layer));
    for (int64_t member = 0; member < layout_.num_members(); ++member)
      add(layer, layout_.rank(stage, member), moves);
  }

  Migration take() {
    const std::vector<std::string> problems = graph::validate(step_.graph);
    PIPER_CHECK(problems.empty(), problems.front());
    PIPER_CHECK(graph::find_deadlock(step_.graph).empty(), "experts wait for each other");
    return {std::move(step_), std::move(pieces_)};
  }

 private:
  // The virtual stage; modules of multi-token prediction are on the last.
  int64_t stage_of(int32_t layer) const {
    int64_t stage = strategy_.mesh.num_virtual_stages() - 1;
    while (stage > 0 && strategy::first_layer(strategy_, stage) > layer) --stage;
    return stage;
  }

  SegmentId segment(SegmentKind kind, int32_t layer, int32_t expert, const StatePieces& pieces) {
    step_.segments.push_back({.kind = kind, .layer = layer, .expert = expert});
    pieces_.push_back(pieces);
    return SegmentId(std::ssize(step_.segments) - 1);
  }
  SlotId state_of(Rank rank, SegmentId segment) {
    int64_t parameters = 0;
    for (const StatePiece& piece : pieces_[segment.index()]) parameters += piece.end - piece.begin;
    step_.slots.push_back({SlotKind::kExpertState, step_.segments[segment.index()], parameters});
    return step_.graph.add_slot(
        {.rank = rank, .shape = graph::SlotShape(std::ssize(step_.slots) - 1)});
  }

  // The two ends of an operation find it by the expert and the ranks that it leaves and comes to.
  OperationId operation(int32_t layer, int32_t expert, Rank from, Rank to) {
    const auto [found, is_new] = operations_.try_emplace(
        std::tuple(layer, expert, from.value, to.value), OperationId::none());
    if (is_new) found->second = step_.graph.new_operation();
    return found->second;
  }

  // --- who has which states ---
  bool divides_states() const { return strategy_.zero > 0; }
  int64_t num_replicas() const { return layout_.size(strategy::Axis::kExpertData); }
  int64_t replica(Rank rank) const { return layout_.coordinates(rank).edp; }

  // Returns the pieces of an expert's states, at this index of a rank's, that a replica has. The
  // rank's buffer of gradients holds first one tensor of all its experts, then the other.
  StatePieces held(int32_t layer, int64_t index, int64_t replica) const {
    const std::array<int64_t, 2> elements = expert_tensors(model_, strategy_, layer);
    const int64_t experts =
        model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts / strategy_.mesh.ep;
    const int64_t all = experts * (elements[0] + elements[1]);
    const collective::Block share = divides_states()
                                        ? collective::reduce_share(replica, num_replicas(), all)
                                        : collective::Block{.offset = 0, .count = all};
    StatePieces pieces;
    int64_t tensor_begin = 0;
    for (int32_t tensor = 0; tensor < 2; ++tensor) {
      const int64_t each = elements[static_cast<size_t>(tensor)];
      const int64_t first = tensor_begin + index * each;
      const int64_t begin = std::max(first, share.offset),
                    end = std::min(first + each, share.offset + share.count);
      if (begin < end) pieces.push_back({tensor, begin - first, end - first});
      tensor_begin += experts * each;
    }
    return pieces;
  }

  static StatePieces common(const StatePieces& a, const StatePieces& b) {
    StatePieces both;
    for (const StatePiece& one : a)
      for (const StatePiece& other : b) {
        const int64_t begin = std::max(one.begin, other.begin), end = std::min(one.end, other.end);
        if (one.tensor == other.tensor && begin < end) both.push_back({one.tensor, begin, end});
      }
    return both;
  }

  // What goes from one replica of the rank that an expert leaves to one of the rank it comes to.
  StatePieces moved(int32_t layer, const ExpertMove& move, int64_t from, int64_t to) const {
    if (!divides_states() && from != to) return {};
    return common(held(layer, move.from_index, from), held(layer, move.to_index, to));
  }

  // The rank of the same expert group with this ep index, in its `replica`.
  Rank rank_of(Rank rank, int32_t ep_index, int64_t replica) const {
    const Rank of_group =
        layout_.group(strategy::Axis::kExpert, rank)[static_cast<size_t>(ep_index)];
    return layout_.group(strategy::Axis::kExpertData, of_group)[static_cast<size_t>(replica)];
  }

  void add(int32_t layer, Rank rank, const std::vector<ExpertMove>& moves) {
    const int64_t ep_index = layout_.coordinates(rank).ep, here = replica(rank);
    const TaskId before = last_put_[rank.index()];
    struct Arrival {
      int32_t expert;
      SlotId state;
      TaskId arrives;
    };
    std::vector<Arrival> arrivals;
    const auto for_each_piece = [&](const auto& visit) {
      for (const ExpertMove& move : moves)
        for (int64_t other = 0; other < num_replicas(); ++other) visit(move, other);
    };
    for_each_piece(
        [&](const ExpertMove& move, int64_t from) {  // posted first: it waits for nothing
          if (move.to_rank != ep_index) return;
          const Rank peer = rank_of(rank, move.from_rank, from);
          const StatePieces pieces = moved(layer, move, from, here);
          if (peer == rank || pieces.empty()) return;
          const SegmentId takes = segment(SegmentKind::kTakeExpert, layer, move.expert, pieces);
          const SlotId state = state_of(rank, takes);
          const TaskId arrives =
              step_.graph.add({.rank = rank,
                               .kind = TaskKind::kReceive,
                               .phase = Phase::kUpdate,
                               .segment = takes,
                               .operation = operation(layer, move.expert, peer, rank),
                               .peer = peer,
                               .dependencies = {before},
                               .writes = {state}});
          arrivals.push_back({move.expert, state, arrives});
        });
    for_each_piece([&](const ExpertMove& move, int64_t to) {
      if (move.from_rank != ep_index) return;
      const Rank peer = rank_of(rank, move.to_rank, to);
      const StatePieces pieces = moved(layer, move, here, to);
      if (pieces.empty()) return;
      const SegmentId takes = segment(SegmentKind::kTakeExpert, layer, move.expert, pieces);
      const SlotId state = state_of(rank, takes);
      const TaskId taken = step_.graph.add({.rank = rank,
                                            .kind = TaskKind::kCompute,
                                            .phase = Phase::kUpdate,
                                            .segment = takes,
                                            .writes = {state}});
      if (peer == rank) {
        arrivals.push_back({move.expert, state, taken});
        return;
      }
      step_.graph.add({.rank = rank,
                       .kind = TaskKind::kSend,
                       .phase = Phase::kUpdate,
                       .segment = takes,
                       .operation = operation(layer, move.expert, rank, peer),
                       .peer = peer,
                       .dependencies = {taken},
                       .reads = {state},
                       .frees = {state}});
    });
    for (const Arrival& arrival : arrivals) {
      const StatePieces pieces = pieces_[step_.graph.task(arrival.arrives).segment.index()];
      last_put_[rank.index()] = step_.graph.add(
          {.rank = rank,
           .kind = TaskKind::kCompute,
           .phase = Phase::kUpdate,
           .segment = segment(SegmentKind::kPutExpert, layer, arrival.expert, pieces),
           .dependencies = {arrival.arrives},
           .reads = {arrival.state},
           .frees = {arrival.state}});
    }
  }

  const model::Model& model_;
  const strategy::Strategy& strategy_;
  const strategy::RankLayout layout_;
  StepGraph step_;
  std::vector<StatePieces> pieces_;  // by segment
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, OperationId> operations_;
  std::vector<TaskId> last_put_;  // by rank
};

}  // namespace

std::array<int64_t, 2> expert_tensors(const model::Model& model, const strategy::Strategy& strategy,
                                      int32_t layer) {
  const model::FeedForward& net = model.layers[static_cast<size_t>(layer)].feed_forward;
  const int64_t matrix = net.ffn / strategy.mesh.etp * model.hidden;
  return {(net.num_matrices - 1) * matrix, matrix};
}

Migration write_migration(const model::Model& model, const strategy::Strategy& strategy,
                          const LayerMoves& moves) {
  MigrationWriter writer(model, strategy);
  for (const auto& [layer, of_layer] : moves) writer.add(layer, of_layer);
  return writer.take();
}

}  // namespace piper::schedule
