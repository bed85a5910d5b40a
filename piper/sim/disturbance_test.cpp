#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/rank_layout.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <cmath>

namespace piper::sim {
namespace {

namespace priced = cost::example;

struct Case {
  model::Model model = priced::mixture(4);
  strategy::Strategy strategy = priced::strategy(model, 2, 2, 4, 6);
  schedule::StepGraph step = schedule::write_step(model, strategy);
  cost::Prices prices = cost::price(step, model, strategy, priced::nodes());

  cost::Prices with(const Disturbance& disturbance) const {
    cost::Prices changed = prices;
    disturb(step, disturbance, changed);
    return changed;
  }
  double seconds(const Disturbance& disturbance) const {
    return simulate(step, with(disturbance)).seconds();
  }
};

}  // namespace

TEST_CASE("a straggler's compute takes its factor longer, and nothing else changes its price") {
  const Case c;
  const cost::Prices slow = c.with({.stragglers = {{Rank(5), 3}}});
  for (const graph::Task& task : c.step.graph.tasks()) {
    const bool slower = task.rank == Rank(5) && task.kind == graph::TaskKind::kCompute;
    CHECK(slow.seconds[task.id.index()] == c.prices.seconds[task.id.index()] * (slower ? 3 : 1));
  }
  CHECK(slow.slot_bytes == c.prices.slot_bytes);
}

TEST_CASE("one straggler slows the whole step, less than by its factor and more than not at all") {
  const Case c;
  const double plain = c.seconds({}), slow = c.seconds({.stragglers = {{Rank(5), 3}}});
  CHECK(slow > 1.05 * plain);
  CHECK(slow < 3 * plain);
  // All ranks slower by the same: compute scales, communication does not.
  Disturbance all;
  for (int64_t rank = 0; rank < 8; ++rank) all.stragglers.push_back({Rank(rank), 3});
  CHECK(c.seconds(all) > slow);
  CHECK(c.seconds(all) < 3 * plain);
}

TEST_CASE("jitter is the same for a seed, another for another, and keeps the mean") {
  const Case c;
  const Disturbance jitter{.jitter_sigma = 0.2, .seed = 4};
  CHECK(c.with(jitter).seconds == c.with(jitter).seconds);
  CHECK(c.seconds(jitter) == c.seconds(jitter));
  CHECK(c.seconds(jitter) != c.seconds({.jitter_sigma = 0.2, .seed = 5}));
  CHECK(c.with({.jitter_sigma = 0, .seed = 9}).seconds == c.prices.seconds);
  double ratio = 0, logs = 0, squares = 0;
  int64_t num = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const cost::Prices p = c.with({.jitter_sigma = 0.2, .seed = seed});
    for (const graph::Task& task : c.step.graph.tasks()) {
      const size_t i = task.id.index();
      if (task.kind != graph::TaskKind::kCompute) {
        REQUIRE(p.seconds[i] == c.prices.seconds[i]);
        continue;
      }
      if (c.prices.seconds[i] == 0) continue;
      const double factor = p.seconds[i] / c.prices.seconds[i];
      ratio += factor;
      logs += std::log(factor);
      squares += std::log(factor) * std::log(factor);
      ++num;
    }
  }
  const auto n = static_cast<double>(num);
  CHECK(ratio / n == doctest::Approx(1).epsilon(0.01));
  CHECK(std::sqrt(squares / n - logs * logs / n / n) == doctest::Approx(0.2).epsilon(0.02));
}

TEST_CASE("a rank's jitter does not depend on which other ranks are written") {
  const Case c;
  const std::vector<Rank> pipeline =
      strategy::RankLayout(c.strategy).group(strategy::Axis::kPipeline, Rank(1));
  const schedule::StepGraph part = schedule::write_step(c.model, c.strategy, pipeline);
  cost::Prices prices = cost::price(part, c.model, c.strategy, priced::nodes());
  const Disturbance jitter{.jitter_sigma = 0.2, .seed = 4};
  disturb(part, jitter, prices);
  const cost::Prices all = c.with(jitter);
  for (const Rank rank : pipeline) {
    const auto& a = c.step.graph.stream(rank, graph::Stream::kCompute);
    const auto& b = part.graph.stream(rank, graph::Stream::kCompute);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i)
      CHECK(all.seconds[a[i].index()] == cost::near(prices.seconds[b[i].index()]));
  }
}

TEST_CASE("a straggler outside the world is the user's mistake") {
  const Case c;
  CHECK_THROWS_AS(c.with({.stragglers = {{Rank(8), 2}}}), InvalidInput);
}

TEST_CASE(
    "a step on a machine whose tasks scatter is longer, keeps its memory, and is the same each "
    "time") {
  const Case c;
  const graph::Timeline calm = simulate(c.step, c.prices);
  CHECK(simulate_scattered(c.step, c.prices, {}).seconds() == calm.seconds());
  const graph::Timeline some = simulate_scattered(c.step, c.prices, {.task = 0.1});
  const graph::Timeline more = simulate_scattered(c.step, c.prices, {.task = 0.3});
  CHECK(some.seconds() > calm.seconds());
  CHECK(more.seconds() > some.seconds());
  CHECK(more.seconds() < 1.5 * calm.seconds());
  CHECK(some.peak_bytes == calm.peak_bytes);
  CHECK(simulate_scattered(c.step, c.prices, {.task = 0.1}).seconds() == some.seconds());
}

TEST_CASE("a rank that is slower for a whole step is so in all its tasks by one factor") {
  const Case c;
  const cost::Prices p = c.with({.rank_sigma = 0.2, .seed = 3});
  double sum = 0;
  for (int64_t rank = 0; rank < c.step.graph.num_ranks(); ++rank) {
    const auto& tasks = c.step.graph.stream(Rank(rank), graph::Stream::kCompute);
    const auto ratio = [&](size_t i) {
      return p.seconds[tasks[i].index()] / c.prices.seconds[tasks[i].index()];
    };
    sum += std::log(ratio(0));
    for (size_t i = 1; i < tasks.size(); ++i)
      if (c.prices.seconds[tasks[i].index()] > 0) CHECK(ratio(i) == doctest::Approx(ratio(0)));
  }
  CHECK(sum != 0);
  CHECK(simulate_scattered(c.step, c.prices, {.rank = 0.2}).seconds() >
        simulate(c.step, c.prices).seconds());
}

}  // namespace piper::sim
