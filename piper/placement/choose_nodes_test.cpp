#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/placement/choose_nodes.h>

#include <numeric>
#include <set>

#include "placement_cases.h"

namespace piper::placement {
namespace {

using namespace example_places;

std::vector<RankGroup> expert_groups(int32_t num_groups, int32_t size) {
  std::vector<RankGroup> groups;
  for (int32_t g = 0; g < num_groups; ++g) {
    groups.push_back({Axis::kExpert, false, 100, std::vector<int32_t>(static_cast<size_t>(size))});
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

TEST_CASE("of choices that cost the same, the one on fewer switches is taken") {
  // All that is said stays inside of nodes.
  const cluster::Allocation free =
      allocation({{0, 0}, {1, 0}, {2, 0}, {2, 0}}, std::vector<int64_t>(4, 4));
  const NodeChoice choice = choose_nodes(free, 2, expert_groups(2, 4), 8);
  CHECK(choice.nodes == std::vector<int32_t>{2, 3});
  CHECK(choice.seconds == choice.first_seconds);
  CHECK(choice.is_best);
}

TEST_CASE("no choice is said to be the best whose placement is not proven to be") {
  // Groups of seven on seven nodes of four: each alone fits two nodes, all together do not.
  const cluster::Allocation free =
      allocation(std::vector<std::vector<int>>(7, {0, 0}), std::vector<int64_t>(7, 4));
  CHECK(!choose_nodes(free, 7, expert_groups(4, 7), 28).is_best);
}

TEST_CASE("small choices are as good as the best of all subsets") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
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

// Switches of so many nodes of four, and nine more of one each: too many ways to look at all.
cluster::Allocation on_switches(const std::vector<int>& sizes) {
  std::vector<std::vector<int>> paths;
  for (int s = 0; s < 9; ++s) paths.push_back({s, 0});
  for (size_t s = 0; s < sizes.size(); ++s)
    for (int i = 0; i < sizes[s]; ++i) paths.push_back({9 + static_cast<int>(s), 0});
  const size_t num_nodes = paths.size();
  return allocation(paths, std::vector<int64_t>(num_nodes, 4));
}

TEST_CASE(
    "of many, the switch that fits best is taken, else the largest and the best for the rest") {
  const cluster::Allocation free = on_switches({5, 8, 6});
  const auto on = [&](int32_t count, const std::vector<RankGroup>& groups) {
    std::vector<int> taken(4);  // of the single nodes, and of each switch
    for (const int32_t n : choose_nodes(free, count, groups, 4 * count).nodes)
      ++taken[n < 9 ? 0 : n < 14 ? 1 : n < 22 ? 2 : 3];
    return taken;
  };
  CHECK(on(6, expert_groups(1, 24)) == std::vector{0, 0, 0, 6});
  CHECK(on(10, expert_groups(1, 40)) == std::vector{0, 2, 8, 0});
}

TEST_CASE("of many, no node is taken twice where switches give pairs and then what is left") {
  const cluster::Allocation free = on_switches({3, 3, 3});
  const NodeChoice choice = choose_nodes(free, 8, expert_groups(4, 8), 32);
  CHECK(std::set(choice.nodes.begin(), choice.nodes.end()).size() == 8);
}

TEST_CASE(
    "where slots are uneven: from the first in order, one node for another as long as that gains") {
  // The first is in a rack of its own. Twelve nodes and a switch of three have one slot each, and
  // are of no use; too many ways to look at all.
  std::vector<std::vector<int>> paths{{0, 1}, {1, 0}, {2, 0}, {3, 0}, {3, 0}, {3, 0}};
  std::vector<int64_t> slots{4, 4, 4, 1, 1, 1};
  for (int s = 4; s < 16; ++s) {
    paths.push_back({s, 0});
    slots.push_back(1);
  }
  const std::vector<RankGroup> groups = expert_groups(1, 12);
  CHECK(choose_nodes(allocation(paths, slots), 3, groups, 12).nodes ==
        std::vector<int32_t>{0, 1, 2});
  // A switch of four nodes of four slots; by their number alone, three fit the switch of three
  // better.
  for (int i = 0; i < 4; ++i) {
    paths.push_back({16, 0});
    slots.push_back(4);
  }
  CHECK(choose_nodes(allocation(paths, slots), 3, groups, 12).nodes ==
        std::vector<int32_t>{18, 19, 20});
}

TEST_CASE("more nodes than are free are refused") {
  const cluster::Allocation free = allocation({{0, 0}, {0, 0}}, {4, 4});
  CHECK_THROWS_AS(choose_nodes(free, 3, expert_groups(1, 4), 4), InvalidInput);
  CHECK_THROWS_AS(choose_nodes(free, 0, expert_groups(1, 4), 4), InvalidInput);
}

}  // namespace piper::placement
