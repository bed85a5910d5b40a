#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/under_load.h>
#include <testing/plan/example_world.h>
#include <tests/switches.h>

#include <algorithm>

namespace piper::plan {
namespace {

struct LoadedWorld : ExampleWorld {
  Request request() const {
    Request r = ExampleWorld::request(16, 64);
    if (!testing::full_counts()) r.fixed.micro_batch_sequences = 1;
    r.num_kept = 16;
    return r;
  }
};

cost::LoadSamples samples(const char* load, cost::Statistic statistic = cost::Statistic::kP95) {
  return {.load = cost::parse_load(load), .statistic = statistic, .num_samples = 5};
}

// Five steps in which the first two experts have a quarter of all rows each, and the other six
// 1/12; or all have the same.
cost::LoadSamples lasting_heat(bool is_hot) {
  cost::LoadSamples of = samples("uniform", cost::Statistic::kMean);
  std::vector<double> shares(8, is_hot ? 1 / 12.0 : 1 / 8.0);
  if (is_hot) shares[0] = shares[1] = 1 / 4.0;
  of.load = {.kind = cost::LoadKind::kTrace, .text = "trace", .trace = {{shares}}};
  of.rebalance = {.kind = balance::RebalanceKind::kPrice, .every = 2};
  return of;
}

}  // namespace

TEST_CASE("one expert with three times its share loads its rank by what the others of it leave") {
  const LoadedWorld world;
  const Imbalances found =
      sampled_imbalances(world.request(), samples("hot-expert:3"), {1, 2, 4, 8});
  // One of the 8 experts has 3/8 of all rows, the others 5/56 each.
  for (const auto& [ep, imbalance] : {std::pair{1, 1.0},
                                      {2, 2 * (3 / 8.0 + 3 * 5 / 56.0)},
                                      {4, 4 * (3 / 8.0 + 5 / 56.0)},
                                      {8, 3.0}})
    for (const double drawn : found.at(ep)) CHECK(drawn == doctest::Approx(imbalance));
  // A rank has no more than all rows.
  for (const auto& [ep, drawn] :
       sampled_imbalances(world.request(), samples("hot-rank:4"), {1, 2, 8}))
    CHECK(drawn.front() == doctest::Approx(std::min<double>(4, static_cast<double>(ep))));
  CHECK_THROWS_AS(sampled_imbalances(world.request(), samples("hot-expert:9"), {1}), InvalidInput);
}

TEST_CASE("an even load ranks as the plain search does, an uneven one is slower and fits") {
  const LoadedWorld world;
  Plan plain = search(world.request());
  simulate_ranked(world.request(), plain, 10);
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst})
    for (const char* load : {"uniform", "zipf:0.5"}) {
      // Statistics of an even load are one number.
      if (load == std::string_view("uniform") && statistic != cost::Statistic::kP95 &&
          !testing::full_counts())
        continue;
      CAPTURE(load);
      Request request = world.request();
      const Imbalances drawn =
          sampled_imbalances(world.request(), samples(load, statistic), {1, 2, 4, 8});
      request.imbalance_by_ep = statistic_of(drawn, statistic);
      Plan plan = search(request);
      simulate_under_load(request, samples(load, statistic), 10, plan);
      REQUIRE(plan.ranked.size() > 10);
      for (size_t i = 0; i < 10; ++i) {
        const Candidate& c = plan.ranked[i];
        REQUIRE(c.under_load);
        // The p95 of the step is the step at the p95 of the imbalance.
        if (statistic != cost::Statistic::kMean)
          CHECK(cost::value(c.under_load->seconds, statistic) == c.step_seconds());
        CHECK(cost::value(c.under_load->peak_bytes, statistic) <= request.memory_limit_bytes);
        if (i > 0)
          CHECK(cost::value(plan.ranked[i - 1].under_load->seconds, statistic) <=
                cost::value(c.under_load->seconds, statistic));
      }
      const double best = plan.ranked.front().step_seconds();
      const double even = plain.ranked.front().step_seconds();
      CHECK((std::string(load) == "uniform" ? best == even : best >= even));
    }
}

TEST_CASE("who does not fit at p95 of the load leaves the ranking, also where the front has him") {
  const LoadedWorld world;
  Request request = world.request();
  request.load = samples("hot-rank:2");
  request.imbalance_by_ep =
      cost::expected_imbalances(request.load->load, *request.model, {1, 2, 4, 8});
  Plan plan = search(request);
  REQUIRE(!plan.ranked.empty());
  // Loads are drawn twice as hot as the search expects: some of what it ranked does not fit.
  const cost::LoadSamples hotter = samples("hot-rank:4");
  request.memory_limit_bytes = plan.ranked.front().estimate.peak_bytes * 1.001;
  simulate_under_load(request, hotter, 10, plan);
  for (const Candidate& c : plan.ranked)
    if (c.under_load) CHECK(c.under_load->peak_bytes.p95 <= request.memory_limit_bytes);
  for (const Candidate& c : plan.pareto)
    if (c.under_load) CHECK(c.under_load->peak_bytes.p95 <= request.memory_limit_bytes);
}

TEST_CASE("experts that move between samples even out a hot rank as far as whole experts allow") {
  const LoadedWorld world;
  const cost::LoadSamples hot = lasting_heat(true);
  const Imbalances drawn = sampled_imbalances(world.request(), hot, {1, 4, 8});
  // 8 experts, 2 a rank. After two steps one of the two goes to another rank: 1/4 + 1/12 of all
  // rows, four times.
  CHECK(drawn.at(4).size() == 5);
  for (size_t i = 0; i < 5; ++i) CHECK(drawn.at(4)[i] == doctest::Approx(i < 2 ? 2.0 : 4 / 3.0));
  for (const int64_t ep : {1, 8})  // no rank can give one away
    for (const double imbalance : drawn.at(ep))
      CHECK(imbalance == doctest::Approx(ep == 1 ? 1.0 : 2.0));
}

TEST_CASE(
    "a strategy moves experts where that is faster, what moves counted, and else lets them be") {
  const LoadedWorld world;
  for (const bool is_hot : {true, false}) {
    const cost::LoadSamples hot = lasting_heat(is_hot);
    Request request = world.request();
    request.fixed.ep = 4;
    request.fixed.etp = 1;
    request.imbalance_by_ep =
        statistic_of(sampled_imbalances(request, hot, {4}), cost::Statistic::kMean);
    Plan plan = search(request);
    simulate_under_load(request, hot, 4, plan);
    REQUIRE(plan.ranked.size() >= 4);
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(is_hot);
      CAPTURE(describe(plan.ranked[i].strategy));
      const cost::UnderLoad& of = *plan.ranked[i].under_load;
      REQUIRE(of.rebalancing);
      const cost::RebalancingGain& gain = *of.rebalancing;
      CHECK(gain.pays == (gain.seconds.mean < gain.seconds_without.mean));
      CHECK(of.seconds.mean == std::min(gain.seconds.mean, gain.seconds_without.mean));
      if (!is_hot) {
        CHECK(!gain.pays);
        CHECK(gain.migrated_experts == 0);
        CHECK(gain.migration_seconds == 0);
        continue;
      }
      CHECK(gain.pays);
      // One exchange of two experts in each of 32 layers, in every replica, once.
      const int64_t experts = 2 * 32 * plan.ranked[i].strategy.mesh.edp();
      CHECK(gain.migrated_experts == experts);
      // Three matrices of 4096 x 14336, master and moments in fp32.
      CHECK(gain.migrated_bytes == experts * 3 * 4096 * 14336 * 12);
      CHECK(gain.migration_seconds > 0);
      // Two steps before the move, and three after it, the first of which waits for what moves.
      const Candidate& c = plan.ranked[i];
      const double after = request.estimator()->estimate(c.strategy, 4 / 3.0).seconds *
                           (c.step_seconds() / c.estimate.seconds);
      const double sum = 2 * gain.seconds_without.mean + 3 * after + gain.migration_seconds;
      CHECK(gain.seconds.mean == doctest::Approx(sum / 5).epsilon(1e-9));
    }
  }
}

}  // namespace piper::plan
