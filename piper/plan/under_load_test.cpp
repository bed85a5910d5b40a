#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/example_world.h>
#include <piper/plan/under_load.h>

#include <algorithm>

namespace piper::plan {
namespace {

struct World : ExampleWorld {
  Request request() const {
    Request r = ExampleWorld::request(16, 64);
    r.num_kept = 16;
    return r;
  }
};

cost::LoadSamples samples(const char* load, cost::Statistic statistic = cost::Statistic::kP95) {
  return {.load = cost::parse_load(load), .statistic = statistic, .num_samples = 5};
}

}  // namespace

TEST_CASE("one expert with three times its share loads its rank by what the others of it leave") {
  const World world;
  const Imbalances found = sampled_imbalances(samples("hot-expert:3"), world.model, {1, 2, 4, 8});
  // Of 8 experts one has 3/8 of all rows, the others 5/56 each.
  for (const auto& [ep, imbalance] : {std::pair{1, 1.0},
                                      {2, 2 * (3 / 8.0 + 3 * 5 / 56.0)},
                                      {4, 4 * (3 / 8.0 + 5 / 56.0)},
                                      {8, 3.0}})
    for (const double drawn : found.at(ep)) CHECK(drawn == doctest::Approx(imbalance));
  // A rank has no more than all rows.
  for (const auto& [ep, drawn] : sampled_imbalances(samples("hot-rank:4"), world.model, {1, 2, 8}))
    CHECK(drawn.front() == doctest::Approx(std::min<double>(4, static_cast<double>(ep))));
  CHECK_THROWS_AS(sampled_imbalances(samples("hot-expert:9"), world.model, {1}), InvalidInput);
}

TEST_CASE("an even load ranks as the plain search does, an uneven one is slower and fits") {
  const World world;
  Plan plain = search(world.request());
  play_ranked(world.request(), plain, 10);
  for (const auto statistic :
       {cost::Statistic::kMean, cost::Statistic::kP95, cost::Statistic::kWorst})
    for (const char* load : {"uniform", "zipf:0.5"}) {
      CAPTURE(load);
      Request request = world.request();
      const Imbalances drawn =
          sampled_imbalances(samples(load, statistic), world.model, {1, 2, 4, 8});
      request.imbalance_by_ep = statistic_of(drawn, statistic);
      Plan plan = search(request);
      play_under_load(request, samples(load, statistic), drawn, 10, plan);
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

}  // namespace piper::plan
