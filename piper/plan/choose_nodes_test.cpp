#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/choose_nodes.h>

#include <numeric>
#include <set>

#include "placement_cases.h"

namespace piper::plan {
namespace {

using namespace example_places;

std::vector<RankGroup> expert_groups(int32_t num_groups, int32_t size) {
  std::vector<RankGroup> groups;
  for (int32_t g = 0; g < num_groups; ++g) {
    groups.push_back({Axis::kExperts, false, 100, std::vector<int32_t>(static_cast<size_t>(size))});
    std::iota(groups.back().ranks.begin(), groups.back().ranks.end(), g * size);
  }
  return groups;
}

// Over all subsets of the nodes.
double brute_force(const Case& c, int64_t count) {
  const auto num_nodes = c.allocation.nodes.size();
  double best = INFINITY;
  for (uint32_t set = 0; set < 1U << num_nodes; ++set) {
    std::vector<int32_t> nodes;
    for (size_t n = 0; n < num_nodes; ++n)
      if (set >> n & 1) nodes.push_back(static_cast<int32_t>(n));
    if (std::ssize(nodes) != count) continue;
    const Slots slots = slots_of(c.allocation, nodes);
    if (slots.size() < c.num_ranks) continue;
    best = std::min(best, place_ranks(slots, c.groups, c.num_ranks).seconds);
  }
  return best;
}

}  // namespace

TEST_CASE("nodes are taken from the switch that holds them all, and from the one that fits best") {
  // Free on the switches: 3, 4, 2 (rack 0 has the first two, rack 1 the third).
  const cluster::Allocation free =
      allocation({{0, 0}, {0, 0}, {0, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {2, 1}, {2, 1}},
                 std::vector<int64_t>(9, 4));
  const auto chosen = [&](int64_t count) {
    return choose_nodes(free, count, expert_groups(1, static_cast<int32_t>(4 * count)),
                        static_cast<int32_t>(4 * count));
  };
  CHECK(chosen(4).nodes == std::vector<int32_t>{3, 4, 5, 6});
  CHECK(chosen(3).nodes == std::vector<int32_t>{0, 1, 2});
  CHECK(chosen(2).num_units[0] == 1);
  const NodeChoice four = chosen(4);
  CHECK(four.is_best);
  CHECK(four.num_units == std::vector<int64_t>{1, 1, 1});
  CHECK(four.first_units == std::vector<int64_t>{2, 1, 1});
  CHECK(four.seconds < four.first_seconds);
}

TEST_CASE("two expert groups of two nodes take two from each switch rather than three and one") {
  const cluster::Allocation free =
      allocation({{0, 0}, {0, 0}, {0, 0}, {1, 0}, {1, 0}, {1, 0}}, std::vector<int64_t>(6, 4));
  const NodeChoice choice = choose_nodes(free, 4, expert_groups(2, 8), 16);
  std::vector<int> on(2);
  for (const int32_t n : choice.nodes) ++on[n / 3];
  CHECK(on == std::vector<int>{2, 2});
}

TEST_CASE("small choices are as good as the best of all subsets") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 25; ++trial) {
    CAPTURE(trial);
    Case c = any_case(random, 9);
    const auto free = std::ssize(c.allocation.nodes);
    const auto count = static_cast<int64_t>(1 + random() % free);
    const double best = brute_force(c, count);
    if (best == INFINITY) {
      CHECK_THROWS_AS(choose_nodes(c.allocation, count, c.groups, c.num_ranks), InvalidInput);
      continue;
    }
    const NodeChoice choice = choose_nodes(c.allocation, count, c.groups, c.num_ranks);
    CHECK(std::ssize(choice.nodes) == count);
    CHECK(std::set(choice.nodes.begin(), choice.nodes.end()).size() == choice.nodes.size());
    CHECK(choice.seconds == doctest::Approx(best).epsilon(1e-9));
    CHECK(choice.seconds <= choice.first_seconds);
  }
}

TEST_CASE("of many nodes too, what is chosen is no worse than the first in order") {
  std::mt19937 random(6);
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<std::vector<int>> paths;
    for (int n = 0; n < 60; ++n) {
      const auto s = static_cast<int>(random() % 12);
      paths.push_back({s, s / 4});
    }
    const cluster::Allocation free = allocation(paths, std::vector<int64_t>(60, 4));
    const NodeChoice choice = choose_nodes(free, 16, expert_groups(4, 16), 64);
    CHECK(choice.seconds <= choice.first_seconds);
    CHECK(choice.num_units[0] < choice.first_units[0]);
    CHECK(std::ssize(choice.nodes) == 16);
  }
}

TEST_CASE("more nodes than are free are refused") {
  const cluster::Allocation free = allocation({{0, 0}, {0, 0}}, {4, 4});
  CHECK_THROWS_AS(choose_nodes(free, 3, expert_groups(1, 4), 4), InvalidInput);
  CHECK_THROWS_AS(choose_nodes(free, 0, expert_groups(1, 4), 4), InvalidInput);
}

}  // namespace piper::plan
