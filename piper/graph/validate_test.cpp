#include <doctest/doctest.h>
#include <piper/graph/graph.h>

using namespace piper;
using namespace piper::graph;

namespace {

// The problems of a graph as one text, so that a test can look for a phrase.
std::string problems(const Graph& graph) {
  std::string text;
  for (const std::string& line : validate(graph)) text += line + "\n";
  return text;
}

bool has(const Graph& graph, const char* phrase) {
  return problems(graph).find(phrase) != std::string::npos;
}

// Rank 0 computes x and sends it; rank 1 receives and reads it.
struct Pair {
  Graph graph{2};
  SlotId x = graph.add_slot({.rank = Rank(0)});
  SlotId y = graph.add_slot({.rank = Rank(1)});
  OperationId operation = graph.new_operation();
  NewTask compute{.rank = Rank(0), .writes = {x}};
  NewTask send{.rank = Rank(0),
               .kind = TaskKind::kSend,
               .operation = operation,
               .peer = Rank(1),
               .dependencies = {TaskId(0)},
               .reads = {x},
               .frees = {x}};
  NewTask receive{.rank = Rank(1),
                  .kind = TaskKind::kReceive,
                  .operation = operation,
                  .peer = Rank(0),
                  .writes = {y}};
  NewTask use{.rank = Rank(1), .dependencies = {TaskId(2)}, .reads = {y}, .frees = {y}};
  const Graph& build() {
    for (const NewTask& task : {compute, send, receive, use}) graph.add(task);
    return graph;
  }
};

Graph exchanges(const std::vector<std::vector<int>>& order_of_rank) {
  Graph graph(static_cast<int64_t>(order_of_rank.size()));
  std::vector<Rank> all;
  for (size_t r = 0; r < order_of_rank.size(); ++r) all.push_back(Rank(r));
  const GroupId group = graph.add_group(all);
  for (size_t i = 0; i < order_of_rank[0].size(); ++i) graph.new_operation();
  for (const Rank rank : all)
    for (const int operation : order_of_rank[rank.index()])
      graph.add({.rank = rank,
                 .kind = TaskKind::kAllToAll,
                 .operation = OperationId(operation),
                 .group = group});
  return graph;
}

}  // namespace

TEST_CASE("a sound graph has no problems") {
  CHECK(problems(Pair().build()) == "");
  CHECK(problems(exchanges({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}})) == "");
}

TEST_CASE("an operation without its other end, or with another's, is found") {
  Pair pair;
  pair.receive.operation = pair.graph.new_operation();
  CHECK(has(pair.build(), "is one of 1 tasks of its operation; 2 are needed"));
  Pair phases;
  phases.receive.phase = Phase::kBackward;
  CHECK(has(phases.build(), "disagrees with #1 forward send to rank 1 of rank 0"));
  Pair nameless;
  nameless.send.operation = OperationId::none();
  CHECK(has(nameless.build(), "names no operation that exists"));
  Pair self;
  self.send.peer = Rank(0);
  CHECK(has(self.build(), "names no peer that exists"));
  Pair computing;
  computing.use.operation = computing.operation;
  CHECK(has(computing.build(), "computes and names an operation"));
  Pair unused;
  unused.graph.new_operation();
  CHECK(has(unused.build(), "operation 1 has no task"));
}

TEST_CASE("an exchange with a missing, doubled or foreign member is found") {
  CHECK(has(exchanges({{0, 1}, {0}}), "is one of 1 tasks of its operation; 2 are needed"));
  CHECK(has(exchanges({{0, 1}, {0, 0}}), "with two tasks of one rank"));
  Graph foreign(2);
  foreign.add({.rank = Rank(1),
               .kind = TaskKind::kAllReduce,
               .operation = foreign.new_operation(),
               .group = foreign.add_group({Rank(0)})});
  CHECK(has(foreign, "is not of its group"));
}

TEST_CASE("exchanges whose order the members disagree on are found, also around three ranks") {
  CHECK(has(exchanges({{0, 1}, {1, 0}}), "comes in no order"));
  // Each pair shares one operation only, so no two ranks disagree; the three together do.
  Graph graph(3);
  for (int i = 0; i < 3; ++i) graph.new_operation();
  const auto add = [&](int rank, int a, int b, int operation) {
    graph.add({.rank = Rank(rank),
               .kind = TaskKind::kAllReduce,
               .operation = OperationId(operation),
               .group = graph.add_group({Rank(a), Rank(b)})});
  };
  add(0, 0, 1, 0), add(0, 0, 2, 2);
  add(1, 1, 2, 1), add(1, 0, 1, 0);
  add(2, 0, 2, 2), add(2, 1, 2, 1);
  CHECK(has(graph, "comes in no order"));
}

TEST_CASE("messages received in another order than they are sent are found") {
  Graph graph(2);
  const OperationId a = graph.new_operation(), b = graph.new_operation();
  for (const OperationId operation : {a, b})
    graph.add({.rank = Rank(0), .kind = TaskKind::kSend, .operation = operation, .peer = Rank(1)});
  for (const OperationId operation : {b, a})
    graph.add(
        {.rank = Rank(1), .kind = TaskKind::kReceive, .operation = operation, .peer = Rank(0)});
  CHECK(has(graph, "is out of order"));
}

TEST_CASE("a slot written twice, never written, freed twice or never is found") {
  Pair twice;
  twice.use.writes = {twice.y};
  CHECK(has(twice.build(), "slot 1 is written twice"));
  Pair never;
  never.compute.writes = {};
  CHECK(has(never.build(), "slot 0 is never written"));
  Pair freed;
  freed.compute.frees = {freed.x};
  CHECK(has(freed.build(), "slot 0 is freed twice"));
  Pair kept;
  kept.use.frees = {};
  CHECK(has(kept.build(), "slot 1 is never freed"));
  Pair foreign;
  foreign.use.reads = {foreign.x};
  CHECK(has(foreign.build(), "names slot 0, which lies on rank 0"));
  Pair absent;
  absent.use.reads = {SlotId(9)};
  CHECK(has(absent.build(), "names slot 9, which does not exist"));
}

TEST_CASE("a read that does not wait for its writer is found, at any speed") {
  Pair send;
  send.send.dependencies = {};
  CHECK(has(send.build(),
            "slot 0 is read by #1 forward send to rank 1 of rank 0, which may start before #0"));
  Pair use;
  use.use.dependencies = {};
  CHECK(has(use.build(),
            "slot 1 is read by #3 forward compute of rank 1, which may start before #2"));
}

TEST_CASE("a free that does not wait for every reader is found") {
  Graph graph(2);
  const SlotId x = graph.add_slot({.rank = Rank(0)});
  const OperationId operation = graph.new_operation();
  const TaskId writer = graph.add({.rank = Rank(0), .writes = {x}});
  const TaskId send = graph.add({.rank = Rank(0),
                                 .kind = TaskKind::kSend,
                                 .operation = operation,
                                 .peer = Rank(1),
                                 .dependencies = {writer},
                                 .reads = {x}});
  graph.add({.rank = Rank(1), .kind = TaskKind::kReceive, .operation = operation, .peer = Rank(0)});
  Graph hasty = graph;
  hasty.add({.rank = Rank(0), .frees = {x}});
  CHECK(has(hasty, "slot 0 is freed by #3 forward compute of rank 0, which may start before #1"));
  graph.add({.rank = Rank(0), .dependencies = {send}, .frees = {x}});
  CHECK(problems(graph) == "");
}

TEST_CASE("what is known through a chain of communication counts as waited for") {
  // compute writes r; counts reads r; an all-to-all after counts writes s; compute reads s and
  // frees r.
  Graph graph(1);
  const GroupId self = graph.add_group({Rank(0)});
  const SlotId r = graph.add_slot({}), s = graph.add_slot({});
  const TaskId gate = graph.add({.writes = {r}});
  const TaskId counts = graph.add({.kind = TaskKind::kExchangeCounts,
                                   .operation = graph.new_operation(),
                                   .group = self,
                                   .dependencies = {gate},
                                   .reads = {r}});
  const TaskId dispatch = graph.add({.kind = TaskKind::kAllToAll,
                                     .operation = graph.new_operation(),
                                     .group = self,
                                     .dependencies = {counts},
                                     .reads = {r},
                                     .writes = {s}});
  graph.add({.dependencies = {dispatch}, .reads = {s}, .frees = {r, s}});
  CHECK(problems(graph) == "");
}
