#include <doctest/doctest.h>
#include <piper/sim/simulate.h>
#include <testing/schedule/example_model.h>
#include <testing/sim/example_prices.h>

using namespace piper;
using graph::TaskId;
using schedule::StepGraph;

namespace {

// Every rank computes the given seconds, one task after the other.
StepGraph independent(const std::vector<std::vector<double>>& seconds_of_rank,
                      std::vector<double>& seconds) {
  StepGraph step;
  step.graph = graph::Graph(static_cast<int64_t>(seconds_of_rank.size()));
  for (size_t rank = 0; rank < seconds_of_rank.size(); ++rank)
    for (const double s : seconds_of_rank[rank]) {
      step.graph.add({.rank = Rank(rank)});
      seconds.push_back(s);
    }
  return step;
}

std::vector<double> starts(const std::vector<std::vector<double>>& seconds_of_rank,
                           std::vector<int32_t> nodes, int64_t cores,
                           double hand_over_seconds = 0) {
  std::vector<double> seconds;
  const StepGraph step = independent(seconds_of_rank, seconds);
  cost::Prices prices = sim::example::free_of_charge(step);
  prices.seconds = seconds;
  prices.node_of_rank = std::move(nodes);
  prices.cores_per_node = cores;
  prices.core_hand_over_seconds = hand_over_seconds;
  std::vector<double> out;
  for (const graph::Interval& interval : sim::simulate(step, prices).tasks)
    out.push_back(interval.start_seconds);
  return out;
}

}  // namespace

TEST_CASE("four ranks on two cores: first come, first served, and who has a core keeps it") {
  // 0 s: ranks 0 and 1 get the cores and keep them for their second task; 2 and 3 wait until 2 s.
  CHECK(starts({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, {0, 0, 0, 0}, 2) ==
        std::vector<double>{0, 1, 0, 1, 2, 3, 2, 3});
}

TEST_CASE("who waited for a core starts a hand-over later; who finds one, or keeps it, does not") {
  CHECK(starts({{1, 1}, {1}, {1}, {1}}, {0, 0, 0, 0}, 2, 0.25) ==
        std::vector<double>{0, 1, 0, 1.25, 2.25});
  CHECK(starts({{1}, {1}}, {0, 0}, 2, 0.25) == std::vector<double>{0, 0});
}

TEST_CASE("a long task keeps its core while the others share the rest") {
  // Rank 0 computes 5 s; ranks 1 and 2 follow each other on the other core.
  CHECK(starts({{5}, {1, 1}, {1, 1}}, {0, 0, 0}, 2) == std::vector<double>{0, 0, 1, 2, 3});
}

TEST_CASE("cores of different nodes do not help each other") {
  CHECK(starts({{1}, {1}, {1}, {1}}, {0, 0, 0, 1}, 1) == std::vector<double>{0, 1, 2, 0});
}

TEST_CASE("without shared cores every rank computes alone") {
  CHECK(starts({{1, 2}, {3}, {1}}, {0, 0, 0}, 0) == std::vector<double>{0, 1, 0, 0});
}

TEST_CASE("bubbles that other ranks fill cost nothing: two pipelines on two cores") {
  // pp 2, dp 2 on 2 cores: the work is 4 ranks x 4 micro-batches x 10 s = 160 core-seconds, so at
  // least 80 s; alone on 4 cores a pipeline takes (4 + 1) x 10 = 50 s. With shared cores the bubble
  // of one rank is filled by others.
  const StepGraph step =
      schedule::write_step(schedule::example::model({0, 0}),
                           schedule::example::strategy({.pp = 2, .ep = 1, .dp = 2}, 2, 4));
  cost::Prices prices = sim::example::priced(step, [&](const graph::Task& task) {
    if (task.kind != graph::TaskKind::kCompute ||
        step.segment(task).kind != schedule::SegmentKind::kAttention)
      return 0.0;
    return task.phase == graph::Phase::kForward ? 3.0 : 7.0;
  });
  CHECK(sim::simulate(step, prices).seconds() == 50);
  prices.cores_per_node = 2;
  const double shared = sim::simulate(step, prices).seconds();
  CHECK(shared >= 80);
  CHECK(shared < 2 * 50);
}

TEST_CASE(
    "copies of a host's exchanges take time from those who compute, when no core is without work") {
  // Four ranks on two cores. Ranks 2 and 3 reduce for 4 s, measured with all four at once: each
  // member's copies are 4 s of the half core that a rank has, 4 s of cores together.
  const auto ends = [](int64_t num_computing, std::vector<int32_t> nodes) {
    StepGraph step;
    step.graph = graph::Graph(4);
    for (int32_t rank = 0; rank < num_computing; ++rank) step.graph.add({.rank = Rank(rank)});
    const graph::OperationId operation = step.graph.new_operation();
    for (const int32_t rank : {2, 3})
      step.graph.add(
          {.rank = Rank(rank), .kind = graph::TaskKind::kAllReduce, .operation = operation});
    cost::Prices prices = sim::example::priced(
        step, [](const graph::Task& task) { return task.operation.valid() ? 4.0 : 10.0; });
    prices.node_of_rank = std::move(nodes);
    prices.cores_per_node = 2;
    std::vector<double> out;
    for (const graph::Interval& interval : sim::simulate(step, prices).tasks)
      out.push_back(interval.end_seconds);
    return out;
  };
  CHECK(ends(2, {0, 0, 0, 0}) == std::vector<double>{12, 12, 4, 4});
  CHECK(ends(1, {0, 0, 0, 0}) == std::vector<double>{10, 4, 4});      // the other core copies
  CHECK(ends(2, {0, 0, 1, 1}) == std::vector<double>{10, 10, 4, 4});  // cores of another node
  CHECK(ends(2, {0, 0, 0, 1}) == std::vector<double>{10, 10, 4, 4});  // over a network
}
