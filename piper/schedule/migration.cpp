#include <piper/base/error.h>
#include <piper/schedule/migration.h>

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

  StepGraph take() {
    const std::vector<std::string> problems = graph::validate(step_.graph);
    PIPER_CHECK(problems.empty(), problems.front());
    PIPER_CHECK(graph::find_deadlock(step_.graph).empty(), "experts wait for each other");
    return std::move(step_);
  }

 private:
  // The virtual stage; modules of multi-token prediction are on the last.
  int64_t stage_of(int32_t layer) const {
    int64_t stage = strategy_.mesh.num_virtual_stages() - 1;
    while (stage > 0 && strategy::first_layer(strategy_, stage) > layer) --stage;
    return stage;
  }

  SegmentId segment(SegmentKind kind, int32_t layer, int32_t expert) {
    step_.segments.push_back({.kind = kind, .layer = layer, .expert = expert});
    return SegmentId(std::ssize(step_.segments) - 1);
  }
  SlotId state_of(Rank rank, SegmentId segment) {
    step_.slots.push_back({SlotKind::kExpertState, step_.segments[segment.index()]});
    return step_.graph.add_slot(
        {.rank = rank, .shape = graph::SlotShape(std::ssize(step_.slots) - 1)});
  }

  // The two ends of an operation find it by the expert and the rank that it leaves.
  OperationId operation(int32_t layer, int32_t expert, Rank from) {
    const auto [found, is_new] =
        operations_.try_emplace(std::tuple(layer, expert, from.value), OperationId::none());
    if (is_new) found->second = step_.graph.new_operation();
    return found->second;
  }

  void add(int32_t layer, Rank rank, const std::vector<ExpertMove>& moves) {
    const int64_t ep_index = layout_.coordinates(rank).ep;
    const std::vector<Rank> group = layout_.group(strategy::Axis::kExpert, rank);
    const auto peer = [&](int32_t index) { return group[static_cast<size_t>(index)]; };
    const TaskId before = last_put_[rank.index()];
    struct Arrival {
      const ExpertMove* move;
      SlotId state;
      TaskId arrives;
    };
    std::vector<Arrival> arrivals;
    for (const ExpertMove& move : moves) {  // posted first: a receive waits for nothing here
      if (move.to_rank != ep_index || !move.changes_rank()) continue;
      const SegmentId takes = segment(SegmentKind::kTakeExpert, layer, move.expert);
      const SlotId state = state_of(rank, takes);
      const TaskId arrives =
          step_.graph.add({.rank = rank,
                           .kind = TaskKind::kReceive,
                           .phase = Phase::kUpdate,
                           .segment = takes,
                           .operation = operation(layer, move.expert, peer(move.from_rank)),
                           .peer = peer(move.from_rank),
                           .dependencies = {before},
                           .writes = {state}});
      arrivals.push_back({&move, state, arrives});
    }
    for (const ExpertMove& move : moves) {
      if (move.from_rank != ep_index) continue;
      const SegmentId takes = segment(SegmentKind::kTakeExpert, layer, move.expert);
      const SlotId state = state_of(rank, takes);
      const TaskId taken = step_.graph.add({.rank = rank,
                                            .kind = TaskKind::kCompute,
                                            .phase = Phase::kUpdate,
                                            .segment = takes,
                                            .writes = {state}});
      if (!move.changes_rank()) {
        arrivals.push_back({&move, state, taken});
        continue;
      }
      step_.graph.add({.rank = rank,
                       .kind = TaskKind::kSend,
                       .phase = Phase::kUpdate,
                       .segment = takes,
                       .operation = operation(layer, move.expert, rank),
                       .peer = peer(move.to_rank),
                       .dependencies = {taken},
                       .reads = {state},
                       .frees = {state}});
    }
    for (const Arrival& arrival : arrivals)
      last_put_[rank.index()] =
          step_.graph.add({.rank = rank,
                           .kind = TaskKind::kCompute,
                           .phase = Phase::kUpdate,
                           .segment = segment(SegmentKind::kPutExpert, layer, arrival.move->expert),
                           .dependencies = {arrival.arrives},
                           .reads = {arrival.state},
                           .frees = {arrival.state}});
  }

  const model::Model& model_;
  const strategy::Strategy& strategy_;
  const strategy::RankLayout layout_;
  StepGraph step_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, OperationId> operations_;
  std::vector<TaskId> last_put_;  // by rank
};

}  // namespace

StepGraph write_migration(const model::Model& model, const strategy::Strategy& strategy,
                          const LayerMoves& moves) {
  MigrationWriter writer(model, strategy);
  for (const auto& [layer, of_layer] : moves) writer.add(layer, of_layer);
  return writer.take();
}

}  // namespace piper::schedule
