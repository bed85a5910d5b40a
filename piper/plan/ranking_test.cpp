#include <doctest/doctest.h>
#include <piper/plan/ranking.h>
#include <testing/plan/example_world.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr double kGiB = 1 << 30;

Candidate candidate(double seconds, double gib, int64_t ep, int64_t etp = 1) {
  Candidate c;
  c.strategy.mesh = {.ep = ep, .dp = 64, .etp = etp};
  c.estimate.seconds = seconds;
  c.estimate.peak_bytes = gib * kGiB;
  c.simulated_seconds = seconds;
  return c;
}

// Which of the list comes first.
size_t best_ranked(const std::vector<Candidate>& list) {
  const ExampleWorld world;
  const Request request = world.request(64, 256);
  Plan plan;
  plan.ranked = list;
  prefer_among_ties(request, plan);
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].step_seconds() == plan.ranked.front().step_seconds() &&
        list[i].strategy == plan.ranked.front().strategy)
      return i;
  return list.size();
}

}  // namespace

TEST_CASE("of strategies within one percent the one with two GiB less is the best") {
  CHECK(best_ranked({candidate(10, 70, 8), candidate(10.09, 67, 8)}) == 1);
  CHECK(best_ranked({candidate(10, 70, 8), candidate(10.11, 20, 8)}) == 0);  // too slow
  // Within one step of kTieBytes the smaller ep is better, then the faster one.
  CHECK(best_ranked({candidate(10, 69.9, 8), candidate(10.05, 69.1, 4)}) == 1);
  CHECK(best_ranked({candidate(10, 69.9, 4), candidate(10.05, 69.1, 4)}) == 0);
  CHECK(best_ranked({candidate(10, 69.9, 4), candidate(10.05, 69.1, 8)}) == 0);
}

TEST_CASE("of equals the exchange that spans fewer nodes is the best") {
  // Eight devices a node: 8 ranks of experts whose matrices four ranks share lie on four nodes.
  CHECK(best_ranked({candidate(10, 60, 8, 4), candidate(10.01, 60, 8)}) == 1);
  const ExampleWorld world;
  REQUIRE(world.cluster.devices_per_node() == 8);
  CHECK(nodes_of_exchange(candidate(1, 1, 8, 4).strategy, world.cluster) == 4);
  CHECK(nodes_of_exchange(candidate(1, 1, 8).strategy, world.cluster) == 1);
  CHECK(nodes_of_exchange(candidate(1, 1, 1).strategy, world.cluster) == 1);
}

TEST_CASE("the others keep their order, and who was not simulated is not preferred") {
  const ExampleWorld world;
  const Request request = world.request(64, 256);
  Plan plan;
  plan.ranked = {candidate(10, 70, 8), candidate(10.01, 69, 8), candidate(10.02, 30, 8),
                 candidate(10.03, 10, 8)};
  plan.ranked.back().simulated_seconds = 0;
  prefer_among_ties(request, plan);
  std::vector<double> memory;
  for (const Candidate& c : plan.ranked) memory.push_back(c.estimate.peak_bytes / kGiB);
  CHECK(memory == std::vector<double>{30, 70, 69, 10});
}

}  // namespace piper::plan
