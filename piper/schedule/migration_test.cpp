#include <doctest/doctest.h>
#include <piper/schedule/migration.h>
#include <testing/schedule/example_model.h>

using namespace piper;
using namespace piper::schedule;
using balance::ExpertPlacement;
using graph::Stream;
using graph::TaskKind;

namespace {

std::vector<std::string> names(const StepGraph& step, Rank rank, Stream stream) {
  std::vector<std::string> list;
  for (const graph::TaskId id : step.graph.stream(rank, stream))
    list.push_back(task_name(step, step.graph.task(id)));
  return list;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("an exchange of two experts is a take, a message and a put on either rank") {
  const model::Model model = example::model({0, 4});
  const strategy::Strategy s = example::strategy({.pp = 2, .ep = 2, .dp = 2}, 2, 2);
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  const StepGraph step =
      write_migration(model, s, {{1, balance::moves_between(plain, plain.swapped(0, 3))}}).step;
  // Stage 0, ranks 0 and 1, has no part in it.
  CHECK(!step.graph.takes_part(Rank(0)));
  CHECK(!step.graph.takes_part(Rank(1)));
  CHECK(names(step, Rank(2), Stream::kCompute) == Names{"U L1 expert 0 take", "U L1 expert 3 put"});
  CHECK(names(step, Rank(2), Stream::kSend) == Names{"U L1 expert 0 send -> 3"});
  CHECK(names(step, Rank(2), Stream::kReceive) == Names{"U L1 expert 3 receive <- 3"});
  CHECK(names(step, Rank(3), Stream::kCompute) == Names{"U L1 expert 3 take", "U L1 expert 0 put"});
  CHECK(graph::validate(step.graph).empty());
  CHECK(graph::find_deadlock(step.graph).empty());
}

TEST_CASE("every replica of an expert group moves its own copy") {
  const model::Model model = example::model({4});
  const strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 6}, 1, 1);
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  const StepGraph step =
      write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(1, 2))}}).step;
  CHECK(step.graph.num_operations() == 6);  // two experts, three groups
  for (int64_t rank = 0; rank < 6; ++rank) {
    const Rank peer(rank % 2 == 0 ? rank + 1 : rank - 1);
    for (const graph::TaskId id : step.graph.stream(Rank(rank), Stream::kSend))
      CHECK(step.graph.task(id).peer == peer);
    CHECK(step.graph.stream(Rank(rank), Stream::kSend).size() == 1);
  }
}

TEST_CASE("an expert that only changes its index is neither sent nor lost") {
  const model::Model model = example::model({4});
  const strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 2}, 1, 1);
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  const StepGraph step =
      write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(0, 1))}}).step;
  // Both are taken before either is put: each lies where the other goes.
  CHECK(names(step, Rank(0), Stream::kCompute) == Names{"U L0 expert 0 take", "U L0 expert 1 take",
                                                        "U L0 expert 0 put", "U L0 expert 1 put"});
  CHECK(step.graph.num_operations() == 0);
  CHECK(!step.graph.takes_part(Rank(1)));
}

TEST_CASE("any placement follows any other, on every mesh, and a layer waits for the one before") {
  const model::Model model = example::model({4, 12, 0, 12});
  for (const strategy::Mesh& mesh :
       {strategy::Mesh{.pp = 1, .ep = 2, .dp = 2}, strategy::Mesh{.pp = 2, .ep = 4, .dp = 4},
        strategy::Mesh{.pp = 4, .ep = 2, .dp = 6}, strategy::Mesh{.pp = 1, .ep = 1, .dp = 3}}) {
    const strategy::Strategy s = example::strategy(mesh, 4, 4);
    LayerMoves moves;
    for (const int32_t layer : {0, 1, 3}) {
      const int64_t experts = model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
      const ExpertPlacement from = ExpertPlacement::plain(experts, mesh.ep);
      ExpertPlacement to = from;
      for (int64_t e = 0; e + 3 < experts; e += 2) to = to.swapped(e, e + 3);
      moves[layer] = balance::moves_between(from, to);
    }
    const StepGraph step = write_migration(model, s, moves).step;
    CHECK(graph::validate(step.graph).empty());
    std::vector<int64_t> slots;
    CHECK(graph::find_deadlock(step.graph, &slots) == "");
    // Never more at once than one layer's: its experts that leave and those that come.
    for (const int64_t live : slots) CHECK(live <= 2 * 12 / mesh.ep);
  }
}

// 4 experts on 2 ranks with 3 replicas, 48 elements an expert: of the 96 of a rank a replica has
// 32. With d 4 and ffn 4 an expert's projections in have 32 elements, the one out 16, so a rank's
// buffer is
//
//   in of the first 0-32 | in of the second 32-64 | out of the first 64-80 | out of the second
//   80-96 replica 0            | replica 1              | replica 2
TEST_CASE("under ZeRO an expert's states travel from who has them to who will") {
  const model::Model model = example::model({4});
  strategy::Strategy s = example::strategy({.pp = 1, .ep = 2, .dp = 6}, 1, 1);
  s.zero = 1;
  REQUIRE(expert_tensors(model, s, 0) == std::array<int64_t, 2>{32, 16});
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  // Expert 0, first on its rank, becomes the second of the other; expert 3 comes in its place.
  const Migration migration =
      write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(0, 3))}});
  const StepGraph& step = migration.step;
  CHECK(graph::validate(step.graph).empty());
  CHECK(graph::find_deadlock(step.graph).empty());
  struct Sent {
    int32_t expert;
    int32_t from, to;
    StatePieces pieces;
    bool operator==(const Sent&) const = default;
  };
  std::vector<Sent> sent;
  for (const graph::Task& task : step.graph.tasks())
    if (task.kind == TaskKind::kSend) {
      const StatePieces& pieces = migration.pieces[task.segment.index()];
      sent.push_back({step.segment(task).expert, task.rank.value, task.peer.value, pieces});
      int64_t parameters = 0;
      for (const StatePiece& piece : pieces) parameters += piece.end - piece.begin;
      CHECK(step.meaning(step.graph.reads(task)[0]).parameters == parameters);
    }
  std::ranges::sort(sent, {}, [](const Sent& of) { return std::tuple(of.from, of.to); });
  // Ranks 0, 2 and 4 are the replicas of the first ep index. In: replica 0 has the first expert's,
  // replica 1 the second's. Out: replica 2 has both.
  CHECK(sent == std::vector<Sent>{{0, 0, 3, {{0, 0, 32}}},
                                  {3, 3, 0, {{0, 0, 32}}},
                                  {0, 4, 5, {{1, 0, 16}}},
                                  {3, 5, 4, {{1, 0, 16}}}});
}

TEST_CASE("every element of an expert's states is put once, whatever divides them") {
  const model::Model model = example::model({4, 12});
  for (const int64_t zero : {0, 1})
    for (const strategy::Mesh& mesh :
         {strategy::Mesh{.pp = 1, .ep = 2, .dp = 10}, strategy::Mesh{.pp = 2, .ep = 4, .dp = 12},
          strategy::Mesh{.pp = 1, .ep = 2, .dp = 2},
          strategy::Mesh{.pp = 1, .ep = 2, .dp = 8, .etp = 2}}) {
      strategy::Strategy s = example::strategy(mesh, 2, 2);
      s.zero = zero;
      LayerMoves moves;
      std::map<std::pair<int32_t, int32_t>, int64_t> put;  // by layer and expert
      for (const int32_t layer : {0, 1}) {
        const int64_t experts = model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
        const ExpertPlacement from = ExpertPlacement::plain(experts, mesh.ep);
        moves[layer] = balance::moves_between(from, from.swapped(0, experts - 1).swapped(1, 2));
        for (const balance::ExpertMove& move : moves[layer]) put[{layer, move.expert}] = 0;
      }
      const Migration migration = write_migration(model, s, moves);
      for (const graph::Task& task : migration.step.graph.tasks()) {
        const Segment& segment = migration.step.segment(task);
        if (segment.kind != SegmentKind::kPutExpert) continue;
        for (const StatePiece& piece : migration.pieces[task.segment.index()])
          put.at({segment.layer, segment.expert}) += piece.end - piece.begin;
      }
      for (const auto& [of, elements] : put) {
        const auto tensors = expert_tensors(model, s, of.first);
        CHECK(elements == (tensors[0] + tensors[1]) * mesh.etp * (zero > 0 ? 1 : mesh.edp()));
      }
    }
}
