#include <doctest/doctest.h>
#include <piper/balance/exhaustive.h>
#include <piper/balance/rebalance.h>

#include <string>

using namespace piper;
using namespace piper::balance;

namespace {

constexpr ExpertPrice kPrice{.bytes = 100, .seconds_per_row = 1e-6, .seconds_per_expert = 1e-3};

RebalanceInput input_of(const std::string& policy, int64_t experts, int64_t ranks,
                        const std::vector<int32_t>& layers) {
  RebalanceInput input{.policy = parse_rebalance(policy, "test")};
  input.policy.every = 10;
  for (const int32_t layer : layers) {
    input.placements.emplace(layer, ExpertPlacement::plain(experts, ranks));
    input.prices.emplace(layer, kPrice);
  }
  return input;
}

LoadWindow window_of(const std::vector<LayerLoads>& steps) {
  LoadWindow window(std::ssize(steps));
  for (const LayerLoads& step : steps) window.add(step);
  return window;
}

}  // namespace

TEST_CASE("by threshold the layers above it are rebalanced, and no others") {
  const LoadWindow window = window_of({{{0, {90, 80, 10, 10}}, {1, {50, 50, 50, 50}}}});
  const auto decisions = rebalance(input_of("threshold:1.3", 4, 2, {0, 1}), window);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].layer == 0);
  CHECK(decisions[0].imbalance == doctest::Approx(170.0 / 95));
  CHECK(decisions[0].imbalance_after <= 1.3);
  CHECK(num_migrated(decisions[0].moves) == 2);
  CHECK(rebalance(input_of("off", 4, 2, {0, 1}), window).empty());
  CHECK(rebalance(input_of("threshold:1.8", 4, 2, {0, 1}), window).empty());
}

TEST_CASE("by price a layer moves where the steps to come save more than moving costs") {
  // Two steps, so that each half is one. 170 - 100 rows saved a step at 1 us: 70 us; ten steps save
  // 700 us, one expert each way costs 1,000.
  const LayerLoads step{{0, {90, 80, 10, 10}}};
  RebalanceInput input = input_of("price", 4, 2, {0});
  CHECK(rebalance(input, window_of({step, step})).empty());
  input.policy.every = 20;
  const auto decisions = rebalance(input, window_of({step, step}));
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].saved_seconds == doctest::Approx(70e-6));
  CHECK(decisions[0].cost_seconds == doctest::Approx(1e-3));
  CHECK(std::string(decisions[0].by) == "pair search");
}

TEST_CASE("noise moves nothing by price: what the older half promised, the newer did not keep") {
  RebalanceInput input = input_of("price", 4, 2, {0});
  input.policy.every = 1000;
  CHECK(rebalance(input, window_of({{{0, {90, 80, 10, 10}}}, {{0, {80, 10, 10, 90}}}})).empty());
  // The same sums, but in every step: now it is a trend.
  const LayerLoads half{{0, {85, 45, 10, 50}}};
  CHECK(!rebalance(input, window_of({half, half})).empty());
}

TEST_CASE("a budget of bytes goes to the most uneven layer, and what is left to the next") {
  RebalanceInput input = input_of("threshold:1.1", 4, 2, {0, 1});
  const LoadWindow window = window_of({{{0, {60, 60, 40, 40}}, {1, {90, 80, 10, 10}}}});
  CHECK(rebalance(input, window).size() == 2);
  input.policy.budget_bytes = 300;  // three experts: one exchange
  const auto decisions = rebalance(input, window);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0].layer == 1);
  input.policy.budget_bytes = 400;
  CHECK(rebalance(input, window).size() == 2);
}

TEST_CASE("random exchanges are the asked part of the experts, and a function of seed and step") {
  RebalanceInput input = input_of("random:0.25", 16, 4, {0});
  const LoadWindow window = window_of({{{0, drawn_loads(1, 16, 100)}}});
  const auto first = rebalance(input, window);
  REQUIRE(first.size() == 1);
  CHECK(num_migrated(first[0].moves) == 4);
  CHECK(rebalance(input, window)[0].placement == first[0].placement);
  input.step = 1;
  CHECK(rebalance(input, window)[0].placement != first[0].placement);
  // One rank has nobody to exchange with.
  CHECK(rebalance(input_of("random:1", 4, 1, {0}), window_of({{{0, {1, 2, 3, 4}}}})).empty());
}

TEST_CASE("the busiest rank's transfers count what it sends or what it receives") {
  const ExpertPlacement from = ExpertPlacement::plain(6, 3);
  CHECK(busiest_transfers(moves_between(from, from.swapped(0, 2).swapped(1, 4)), 3) == 2);
  CHECK(busiest_transfers(moves_between(from, from.swapped(0, 1)), 3) == 0);
}
