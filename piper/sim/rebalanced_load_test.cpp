#include <doctest/doctest.h>
#include <piper/sim/rebalanced_load.h>
#include <testing/cost/example_model.h>

using namespace piper;
using namespace piper::sim;

namespace {

// Experts 0 and 1, which lie on one rank, have 80 % of the rows in every step.
cost::LoadDistribution skewed() {
  return {.kind = cost::LoadKind::kTrace,
          .text = "trace",
          .trace = cost::parse_load_trace("iter,layer,e0,e1,e2,e3\n0,0,40,40,10,10\n", "trace")};
}

std::vector<RebalancedStep> steps_of(const char* policy, const cost::LoadDistribution& load,
                                     int64_t num_steps,
                                     const cluster::Cluster& cluster = cost::example::nodes()) {
  const model::Model model = cost::example::mixture(2);
  const strategy::Strategy s = cost::example::strategy(model, 1, 2, 4);
  balance::RebalancePolicy p = balance::parse_rebalance(policy, "policy");
  p.every = 4;
  return rebalanced_steps(p, load, model, s, cluster, 3, num_steps);
}

double imbalance(const RebalancedStep& step) { return cost::imbalance_of(step.load, 2); }

}  // namespace

TEST_CASE("a load that stays is balanced by the first decision, and nothing moves after it") {
  for (const RebalancedStep& step : steps_of("off", skewed(), 8)) {
    CHECK(imbalance(step) == doctest::Approx(1.6));
    CHECK(step.migrated_experts == 0);
  }
  const std::vector<RebalancedStep> steps = steps_of("threshold:1.05", skewed(), 12);
  for (size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    CHECK(imbalance(steps[i]) == doctest::Approx(i < 4 ? 1.6 : 1));
    // Two experts of two layers on both replicas.
    CHECK(steps[i].migrated_experts == (i == 4 ? 8 : 0));
    CHECK(steps[i].migrated_bytes == steps[i].migrated_experts * 12 * 3 * 8 * 16);
    CHECK(steps[i].moves.empty() == (i != 4));
  }
}

TEST_CASE("by price experts move over a fast link, and stay where a link is too slow to pay") {
  cluster::Cluster slow = cost::example::nodes();
  slow.levels.front().link = {1e-6, 1e3};  // seconds for an expert
  CHECK(steps_of("price", skewed(), 5).back().migrated_experts == 8);
  CHECK(steps_of("price", skewed(), 5, slow).back().migrated_experts == 0);
  CHECK(steps_of("threshold:1.05", skewed(), 5, slow).back().migrated_experts == 8);
}

TEST_CASE("an even load moves nothing") {
  for (const RebalancedStep& step : steps_of("threshold:1.05", cost::parse_load("uniform"), 12)) {
    CHECK(step.migrated_experts == 0);
    CHECK(step.load.placements.empty());
  }
}
