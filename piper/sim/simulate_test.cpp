#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/graph/operations.h>
#include <piper/sim/simulate.h>
#include <testing/schedule/example_model.h>
#include <testing/sim/example_prices.h>

#include <algorithm>
#include <random>

using namespace piper;
using graph::Stream;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;
using schedule::StepGraph;
using strategy::PipelineSchedule;
using strategy::Recompute;

namespace {

StepGraph example_step(strategy::Mesh mesh, PipelineSchedule schedule, Recompute recompute) {
  return schedule::write_step(schedule::example::model({4, 0, 4, 4}, true),
                              schedule::example::strategy(mesh, 4, 5, schedule, recompute));
}

// Prices that differ from task to task; one for all members of an operation.
cost::Prices random_prices(const StepGraph& step, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> of_operation(step.graph.num_operations());
  for (double& seconds : of_operation) seconds = static_cast<double>(random() % 1000) / 64;
  return sim::example::priced(step, [&](const Task& task) {
    return task.operation.valid() ? of_operation[task.operation.index()]
                                  : static_cast<double>(random() % 1000) / 64;
  });
}

// The rules as equations, solved by repetition until nothing changes: slow, and without events.
// Every rank has a device of its own.
std::vector<graph::Interval> by_equations(const graph::Graph& graph,
                                          const std::vector<double>& seconds) {
  const graph::Operations operations(graph);
  std::vector<graph::Interval> at(graph.tasks().size(), {0, 0});
  for (bool changed = true; changed;) {
    changed = false;
    for (const Task& task : graph.tasks()) {
      double start = 0;
      for (const TaskId id : graph.dependencies(task))
        start = std::max(start, at[id.index()].end_seconds);
      const std::vector<TaskId>& ids = graph.stream(task.rank, task.stream);
      const auto before = std::lower_bound(ids.begin(), ids.end(), task.id);
      if (before != ids.begin()) {
        const graph::Interval& previous = at[(before - 1)->index()];
        start = std::max(
            start, task.kind == TaskKind::kCompute ? previous.end_seconds : previous.start_seconds);
      }
      double runs = start;
      if (task.operation.valid())
        for (const TaskId id : operations.tasks(task.operation))
          runs = std::max(runs, at[id.index()].start_seconds);
      const graph::Interval now{start, runs + seconds[task.id.index()]};
      graph::Interval& old = at[task.id.index()];
      changed =
          changed || now.start_seconds != old.start_seconds || now.end_seconds != old.end_seconds;
      old = now;
    }
  }
  return at;
}

}  // namespace

TEST_CASE("the simulation is the solution of its rules") {
  for (const uint32_t seed : {1u, 2u, 3u})
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B})
      for (const Recompute recompute : strategy::kRecomputes) {
        const StepGraph step = example_step({.pp = 4, .ep = 2, .dp = 4}, schedule, recompute);
        const cost::Prices prices = random_prices(step, seed);
        const graph::Timeline timeline = sim::simulate(step, prices);
        const std::vector<graph::Interval> expected = by_equations(step.graph, prices.seconds);
        int64_t num_different = 0;
        for (size_t i = 0; i < expected.size(); ++i)
          num_different += timeline.tasks[i].start_seconds != expected[i].start_seconds ||
                           timeline.tasks[i].end_seconds != expected[i].end_seconds;
        CAPTURE(seed);
        CHECK(num_different == 0);
      }
}

TEST_CASE("an exchange runs on each member from the moment the last has posted") {
  StepGraph step;
  step.graph = graph::Graph(3);
  const graph::GroupId all = step.graph.add_group({Rank(0), Rank(1), Rank(2)});
  const graph::OperationId operation = step.graph.new_operation();
  cost::Prices prices;
  for (int rank = 0; rank < 3; ++rank) {
    const TaskId before = step.graph.add({.rank = Rank(rank)});
    step.graph.add({.rank = Rank(rank),
                    .kind = TaskKind::kAllReduce,
                    .operation = operation,
                    .group = all,
                    .dependencies = {before}});
  }
  prices = sim::example::free_of_charge(step);
  prices.seconds = {1, 10, 3, 20, 2, 30};
  const graph::Timeline timeline = sim::simulate(step, prices);
  CHECK(timeline.tasks[1].start_seconds == 1);  // posted
  CHECK(timeline.tasks[1].end_seconds == 3 + 10);
  CHECK(timeline.tasks[3].end_seconds == 3 + 20);
  CHECK(timeline.tasks[5].end_seconds == 3 + 30);
}

TEST_CASE("tasks start in the order of their stream, and twice the same") {
  const StepGraph step =
      example_step({.pp = 2, .ep = 2, .dp = 2}, PipelineSchedule::k1F1B, Recompute::kFull);
  cost::Prices prices = random_prices(step, 7);
  prices.cores_per_node = 2;
  const graph::Timeline first = sim::simulate(step, prices), second = sim::simulate(step, prices);
  for (int rank = 0; rank < 4; ++rank)
    for (int stream = 0; stream < graph::kNumStreams; ++stream)
      CHECK(graph::start_order(step.graph, first, Rank(rank), static_cast<Stream>(stream)) ==
            step.graph.stream(Rank(rank), static_cast<Stream>(stream)));
  for (size_t i = 0; i < first.tasks.size(); ++i)
    CHECK(first.tasks[i].start_seconds == second.tasks[i].start_seconds);
}

TEST_CASE("every slot is given back: a step ends with the memory it began with") {
  for (const Recompute recompute : strategy::kRecomputes) {
    const StepGraph step =
        example_step({.pp = 2, .ep = 2, .dp = 4}, PipelineSchedule::k1F1B, recompute);
    cost::Prices prices = random_prices(step, 11);
    std::fill(prices.slot_bytes.begin(), prices.slot_bytes.end(), 16);
    std::fill(prices.static_bytes.begin(), prices.static_bytes.end(), 100);
    const graph::Timeline timeline = sim::simulate(step, prices);
    for (size_t rank = 0; rank < timeline.memory.size(); ++rank) {
      CHECK(timeline.memory[rank].back().bytes == 100);
      CHECK(timeline.peak_bytes[rank] > 100);
    }
  }
}

TEST_CASE("a graph that deadlocks is our own mistake, and is explained") {
  StepGraph step;
  step.graph = graph::Graph(2);
  const graph::OperationId there = step.graph.new_operation(), back = step.graph.new_operation();
  const auto message = [&](TaskKind kind, int rank, graph::OperationId operation, TaskId after) {
    return step.graph.add({.rank = Rank(rank),
                           .kind = kind,
                           .operation = operation,
                           .peer = Rank(1 - rank),
                           .dependencies = {after}});
  };
  message(TaskKind::kSend, 0, there, message(TaskKind::kReceive, 0, back, TaskId::none()));
  message(TaskKind::kSend, 1, back, message(TaskKind::kReceive, 1, there, TaskId::none()));
  try {
    sim::simulate(step, sim::example::free_of_charge(step));
    FAIL("no exception");
  } catch (const InternalError& e) {
    CHECK(std::string(e.what()).find("rank 0 waits in forward receive from rank 1") !=
          std::string::npos);
  }
}

TEST_CASE("prices of another step are refused") {
  const StepGraph step = example_step({}, PipelineSchedule::kGPipe, Recompute::kNone);
  cost::Prices prices = sim::example::free_of_charge(step);
  prices.seconds.pop_back();
  CHECK_THROWS_AS(sim::simulate(step, prices), InternalError);
}
