#include <doctest/doctest.h>
#include <piper/sim/simulate.h>
#include <testing/sim/example_prices.h>

using namespace piper;
using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;
using schedule::StepGraph;

namespace {

std::vector<std::pair<double, int64_t>> samples(const graph::Timeline& timeline, int rank) {
  std::vector<std::pair<double, int64_t>> out;
  for (const graph::MemorySample& sample : timeline.memory[rank])
    out.emplace_back(sample.seconds, sample.bytes);
  return out;
}

using Samples = std::vector<std::pair<double, int64_t>>;

}  // namespace

TEST_CASE(
    "slots live from their writer's start to their freer's end, transients while a task runs") {
  StepGraph step;
  step.graph = graph::Graph(1);
  const SlotId a = step.graph.add_slot({}), b = step.graph.add_slot({});
  step.graph.add({.writes = {a}});
  step.graph.add({.reads = {a}, .writes = {b}, .frees = {a}});
  step.graph.add({.reads = {b}, .frees = {b}});
  cost::Prices prices = sim::example::free_of_charge(step);
  prices.seconds = {1, 2, 1};
  prices.slot_bytes = {10, 20};
  prices.transient_bytes = {0, 7, 100};
  prices.static_bytes = {1000};
  const graph::Timeline timeline = sim::simulate(step, prices);
  // 1 s: a and b live, 7 transient; 3 s: a and the transient are gone, then 100 transient; 4 s:
  // nothing is left.
  CHECK(samples(timeline, 0) == Samples{{0, 1010}, {1, 1037}, {3, 1120}, {4, 1000}});
  CHECK(timeline.peak_bytes == std::vector<int64_t>{1120});
}

TEST_CASE("a receive holds its buffer from the moment it is posted") {
  StepGraph step;
  step.graph = graph::Graph(2);
  const graph::OperationId message = step.graph.new_operation();
  const SlotId x = step.graph.add_slot({.rank = Rank(0)}),
               y = step.graph.add_slot({.rank = Rank(1)});
  const TaskId made = step.graph.add({.rank = Rank(0), .writes = {x}});
  step.graph.add({.rank = Rank(0),
                  .kind = TaskKind::kSend,
                  .operation = message,
                  .peer = Rank(1),
                  .dependencies = {made},
                  .reads = {x},
                  .frees = {x}});
  const TaskId arrived = step.graph.add({.rank = Rank(1),
                                         .kind = TaskKind::kReceive,
                                         .operation = message,
                                         .peer = Rank(0),
                                         .writes = {y}});
  step.graph.add({.rank = Rank(1), .dependencies = {arrived}, .reads = {y}, .frees = {y}});
  cost::Prices prices = sim::example::free_of_charge(step);
  prices.seconds = {4, 2, 2, 1};
  prices.slot_bytes = {8, 8};
  const graph::Timeline timeline = sim::simulate(step, prices);
  CHECK(samples(timeline, 0) == Samples{{0, 8}, {6, 0}});
  CHECK(samples(timeline, 1) == Samples{{0, 8}, {7, 0}});
  CHECK(timeline.tasks[2].start_seconds == 0);  // posted
  CHECK(timeline.tasks[2].end_seconds == 6);    // the send is posted at 4 s, and takes 2
}

TEST_CASE("ranks without tasks have no memory, not even static") {
  StepGraph step;
  step.graph = graph::Graph(2);
  step.graph.add({.rank = Rank(1)});
  cost::Prices prices = sim::example::free_of_charge(step);
  prices.static_bytes = {5, 6};
  const graph::Timeline timeline = sim::simulate(step, prices);
  CHECK(timeline.peak_bytes == std::vector<int64_t>{0, 6});
  CHECK(timeline.memory[0].empty());
}
