#include <doctest/doctest.h>
#include <piper/schedule/example_model.h>
#include <piper/schedule/migration.h>

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
      write_migration(model, s, {{1, balance::moves_between(plain, plain.swapped(0, 3))}});
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
      write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(1, 2))}});
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
      write_migration(model, s, {{0, balance::moves_between(plain, plain.swapped(0, 1))}});
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
    const StepGraph step = write_migration(model, s, moves);
    CHECK(graph::validate(step.graph).empty());
    std::vector<int64_t> slots;
    CHECK(graph::find_deadlock(step.graph, &slots) == "");
    // Never more at once than one layer's: its experts that leave and those that come.
    for (const int64_t live : slots) CHECK(live <= 2 * 12 / mesh.ep);
  }
}
