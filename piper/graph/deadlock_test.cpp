#include <doctest/doctest.h>
#include <piper/graph/graph.h>

using namespace piper;
using namespace piper::graph;

namespace {

NewTask message(TaskKind kind, int rank, int peer, OperationId operation,
                TaskId after = TaskId::none()) {
  return {.rank = Rank(rank),
          .kind = kind,
          .micro_batch = 0,
          .operation = operation,
          .peer = Rank(peer),
          .dependencies = {after}};
}

}  // namespace

TEST_CASE("a graph whose tasks can all finish has no deadlock") {
  Graph graph(2);
  const OperationId there = graph.new_operation(), back = graph.new_operation();
  graph.add(message(TaskKind::kSend, 0, 1, there));
  const TaskId got = graph.add(message(TaskKind::kReceive, 1, 0, there));
  graph.add(message(TaskKind::kSend, 1, 0, back, got));
  graph.add(message(TaskKind::kReceive, 0, 1, back));
  CHECK(find_deadlock(graph) == "");
  CHECK(find_deadlock(Graph(7)) == "");
}

TEST_CASE("two ranks that each receive before they send wait in a circle") {
  Graph graph(2);
  const OperationId there = graph.new_operation(), back = graph.new_operation();
  const TaskId a = graph.add(message(TaskKind::kReceive, 0, 1, back));
  graph.add(message(TaskKind::kSend, 0, 1, there, a));
  const TaskId b = graph.add(message(TaskKind::kReceive, 1, 0, there));
  graph.add(message(TaskKind::kSend, 1, 0, back, b));
  CHECK(find_deadlock(graph) ==
        "rank 0 waits in forward receive (micro-batch 0) from rank 1, which waits in forward "
        "receive (micro-batch 0) "
        "from rank 0, and so the circle closes");
}

TEST_CASE("a receive that nobody sends is named") {
  Graph graph(2);
  const TaskId got = graph.add(message(TaskKind::kReceive, 1, 0, graph.new_operation()));
  graph.add({.rank = Rank(1), .dependencies = {got}});
  graph.add({.rank = Rank(0)});
  CHECK(find_deadlock(graph) ==
        "rank 1 waits in forward receive (micro-batch 0) from rank 0, which has no task for it");
}

TEST_CASE("exchanges in opposite orders deadlock when each waits for the first to finish") {
  Graph graph(2);
  const GroupId both = graph.add_group({Rank(0), Rank(1)});
  const OperationId a = graph.new_operation(), b = graph.new_operation();
  const auto exchange = [&](int rank, OperationId operation, TaskId after) {
    return graph.add({.rank = Rank(rank),
                      .kind = TaskKind::kAllToAll,
                      .micro_batch = 1,
                      .operation = operation,
                      .group = both,
                      .dependencies = {after}});
  };
  exchange(0, b, exchange(0, a, TaskId::none()));
  exchange(1, a, exchange(1, b, TaskId::none()));
  CHECK(find_deadlock(graph) ==
        "rank 0 waits in forward all-to-all (micro-batch 1) of group 0 for rank 1, which waits in "
        "forward all-to-all "
        "(micro-batch 1) of group 0 for rank 0, and so the circle closes");
}

TEST_CASE("a member that takes no part in the graph is not waited for") {
  Graph graph(3);
  const GroupId pair = graph.add_group({Rank(0), Rank(2)});
  graph.add({.rank = Rank(0),
             .kind = TaskKind::kAllReduce,
             .operation = graph.new_operation(),
             .group = pair});
  CHECK(find_deadlock(graph) == "");
  graph.add({.rank = Rank(2)});
  CHECK(find_deadlock(graph).find("for rank 2, which has no task for it") != std::string::npos);
}

TEST_CASE("the peak of live slots counts writes at the start and frees at the end of a task") {
  Graph graph(1);
  const SlotId a = graph.add_slot({}), b = graph.add_slot({}), c = graph.add_slot({});
  graph.add({.writes = {a}});
  graph.add({.reads = {a}, .writes = {b}, .frees = {a}});  // a and b
  graph.add({.reads = {b}, .writes = {c}, .frees = {b, c}});
  std::vector<int64_t> peak;
  CHECK(find_deadlock(graph, &peak) == "");
  CHECK(peak == std::vector<int64_t>{2});
}
