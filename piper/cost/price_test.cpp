#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/example_model.h>
#include <piper/cost/near.h>
#include <piper/cost/prices.h>

namespace piper::cost {
namespace {

using schedule::SegmentKind;

struct Priced {
  schedule::StepGraph step;
  Prices prices;
};

Priced priced(const ExpertLoad& load) {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = example::strategy(model, 1, 2, 4, 1);
  Priced p{schedule::write_step(model, s), {}};
  p.prices = price(p.step, model, s, example::nodes(), load);
  return p;
}

// Sum of one rank's forward tasks of a kind.
double seconds(const Priced& p, Rank rank, graph::TaskKind kind, SegmentKind segment) {
  double sum = 0;
  for (const graph::Task& task : p.step.graph.tasks())
    if (task.rank == rank && task.kind == kind && task.phase == graph::Phase::kForward &&
        p.step.segment(task).kind == segment)
      sum += p.prices.seconds[task.id.index()];
  return sum;
}

}  // namespace

TEST_CASE("equal shares cost what a balanced load costs, task by task and slot by slot") {
  const Priced balanced = priced({});
  const Priced equal = priced({{{0.25, 0.25, 0.25, 0.25}, {}}});
  REQUIRE(balanced.prices.seconds.size() == equal.prices.seconds.size());
  for (size_t i = 0; i < equal.prices.seconds.size(); ++i)
    CHECK(equal.prices.seconds[i] == near(balanced.prices.seconds[i]));
  CHECK(equal.prices.slot_bytes == balanced.prices.slot_bytes);
}

TEST_CASE(
    "a hot expert costs its own rank compute, everyone the exchange, and the others nothing") {
  const Priced balanced = priced({});
  const Priced hot = priced({{{1, 0, 0, 0}, {1, 0, 0, 0}}});  // expert 0 is on ep index 0
  const auto experts = [](const Priced& p, int64_t rank) {
    return seconds(p, Rank(rank), graph::TaskKind::kCompute, SegmentKind::kExperts);
  };
  CHECK(experts(hot, 0) > 1.5 * experts(balanced, 0));
  CHECK(experts(hot, 1) == 0);
  CHECK(experts(hot, 2) == experts(hot, 0));  // the replica
  CHECK(seconds(hot, Rank(1), graph::TaskKind::kAllToAll, SegmentKind::kGate) >
        seconds(balanced, Rank(1), graph::TaskKind::kAllToAll, SegmentKind::kGate));
}

TEST_CASE("a load that does not fit the model is refused, all problems at once") {
  try {
    priced({{{0.5, 0.5}, {0.5, 0.5, 0.5, 0}}});
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 2);
  }
}

}  // namespace piper::cost
