#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/graph/graph.h>

using namespace piper;
using namespace piper::graph;

TEST_CASE("a task is added with its lists, on the stream of its kind") {
  Graph graph(2);
  const SlotId a = graph.add_slot({.rank = Rank(0)});
  const SlotId b = graph.add_slot({.rank = Rank(0), .micro_batch = 3});
  const TaskId first = graph.add({.rank = Rank(0), .writes = {a, b}});
  const TaskId second = graph.add({.rank = Rank(0),
                                   .kind = TaskKind::kSend,
                                   .micro_batch = 3,
                                   .operation = graph.new_operation(),
                                   .peer = Rank(1),
                                   .dependencies = {TaskId::none(), first},
                                   .reads = {b, SlotId::none()},
                                   .frees = {b, a}});
  const Task& task = graph.task(second);
  CHECK(task.stream == Stream::kSend);
  CHECK(graph.dependencies(task).size() == 1);  // none() is dropped
  CHECK(graph.dependencies(task)[0] == first);
  CHECK(graph.reads(task).size() == 1);
  CHECK(graph.frees(task)[1] == a);
  CHECK(graph.writes(graph.task(first)).size() == 2);
  CHECK(graph.stream(Rank(0), Stream::kCompute) == std::vector{first});
  CHECK(graph.stream(Rank(0), Stream::kSend) == std::vector{second});
  CHECK(graph.takes_part(Rank(0)));
  CHECK_FALSE(graph.takes_part(Rank(1)));
  CHECK(sizeof(Task) == 64);  // one cache line
}

TEST_CASE("the same members are the same group") {
  Graph graph(3);
  const GroupId pair = graph.add_group({Rank(0), Rank(2)});
  CHECK(graph.add_group({Rank(0), Rank(1)}) != pair);
  CHECK(graph.add_group({Rank(0), Rank(2)}) == pair);
  CHECK(graph.groups().size() == 2);
}

TEST_CASE("a dependency on a later task or another rank's is our own mistake") {
  Graph graph(2);
  const TaskId first = graph.add({.rank = Rank(0)});
  CHECK_THROWS_AS(graph.add({.rank = Rank(1), .dependencies = {first}}), InternalError);
  CHECK_THROWS_AS(graph.add({.rank = Rank(0), .dependencies = {TaskId(7)}}), InternalError);
  CHECK_THROWS_AS(graph.add({.rank = Rank(2)}), InternalError);
}
