#include <doctest/doctest.h>
#include <piper/graph/print.h>

using namespace piper;
using namespace piper::graph;

TEST_CASE("a graph is printed by rank and stream") {
  Graph graph(3);
  const OperationId message = graph.new_operation();
  const SlotId x = graph.add_slot({.rank = Rank(0)});
  const SlotId y = graph.add_slot({.rank = Rank(2)});
  const TaskId first = graph.add({.rank = Rank(0), .micro_batch = 0, .writes = {x}});
  graph.add({.rank = Rank(0),
             .kind = TaskKind::kSend,
             .micro_batch = 0,
             .operation = message,
             .peer = Rank(2),
             .dependencies = {first},
             .reads = {x},
             .frees = {x}});
  const TaskId receive = graph.add({.rank = Rank(2),
                                    .kind = TaskKind::kReceive,
                                    .micro_batch = 0,
                                    .operation = message,
                                    .peer = Rank(0),
                                    .writes = {y}});
  graph.add({.rank = Rank(2),
             .kind = TaskKind::kAllReduce,
             .phase = Phase::kUpdate,
             .operation = graph.new_operation(),
             .group = graph.add_group({Rank(2)}),
             .dependencies = {receive}});
  CHECK(print(graph) ==
        "rank 0\n"
        "  compute\n"
        "    #0 forward compute (micro-batch 0) writes 0\n"
        "  send\n"
        "    #1 forward send (micro-batch 0) to rank 2 after #0 reads 0 frees 0\n"
        "rank 2\n"
        "  exchange\n"
        "    #3 update all-reduce of group 0 after #2\n"
        "  receive\n"
        "    #2 forward receive (micro-batch 0) from rank 0 writes 1\n");
  CHECK(print(graph, [](const Task&) { return std::string("T"); }).find("#3 T after #2") !=
        std::string::npos);
}
