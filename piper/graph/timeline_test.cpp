#include <doctest/doctest.h>
#include <piper/graph/timeline.h>

using namespace piper;
using namespace piper::graph;

TEST_CASE("start order follows the starts, ties follow the ids, and what has not run is left out") {
  Graph graph(1);
  for (int i = 0; i < 4; ++i) graph.add({.rank = Rank(0)});
  Timeline timeline;
  timeline.tasks = {{2, 3}, {0, 1}, {}, {0, 5}};
  CHECK(start_order(graph, timeline, Rank(0), Stream::kCompute) ==
        std::vector{TaskId(1), TaskId(3), TaskId(0)});
  CHECK(timeline.seconds() == 5);
  CHECK_FALSE(timeline.tasks[2].has_run());
  CHECK(Timeline{}.seconds() == 0);
}
