#include <doctest/doctest.h>
#include <piper/placement/best_placement.h>
#include <piper/placement/pack_ranks.h>
#include <piper/placement/place_ranks.h>
#include <piper/placement/placed_exchange.h>
#include <piper/placement/placement_search.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "placement_cases.h"

namespace piper::placement {
namespace {

using namespace example_places;

double seconds(const Slots& slots, std::span<const RankGroup> groups, const RankSlots& placement) {
  return price_placement(slots, groups, placement).seconds;
}

// The cheapest of all orders: ranks of a node change nothing among themselves.
double brute_force_of_groups(const Slots& slots, std::span<const RankGroup> groups,
                             int32_t num_ranks) {
  std::vector<int32_t> node_of_slot =
      slots.unit.empty() ? std::vector<int32_t>(slots.node.size()) : slots.unit[0];
  double best = INFINITY;
  RankSlots placement(static_cast<size_t>(num_ranks), -1);
  std::vector<char> used(node_of_slot.size());
  const std::function<void(size_t)> place = [&](size_t rank) {
    if (rank == placement.size()) {
      best = std::min(best, seconds(slots, groups, placement));
      return;
    }
    std::set<int32_t> tried;
    for (size_t slot = 0; slot < used.size(); ++slot) {
      if (used[slot] || !tried.insert(node_of_slot[slot]).second) continue;
      used[slot] = 1;
      placement[rank] = static_cast<int32_t>(slot);
      place(rank + 1);
      used[slot] = 0;
    }
  };
  place(0);
  return best;
}

void check_sound(const Slots& slots, const Placing& placing, int32_t num_ranks) {
  CHECK(std::ssize(placing.ranks) == num_ranks);
  std::set<int32_t> used;
  for (const int32_t slot : placing.ranks) {
    CHECK(slot >= 0);
    CHECK(slot < slots.size());
    CHECK(used.insert(slot).second);
  }
  CHECK(placing.seconds <= placing.given_seconds);
  CHECK(placing.seconds >= placing.least_seconds * (1 - 1e-9));
}

}  // namespace

TEST_CASE("the price of a placement, counted by hand") {
  // Two nodes of two on one switch; ranks 0 1 2 3 in pairs of 100 bytes and one ring of 30.
  const cluster::Allocation a = allocation({{0, 0}, {0, 0}}, {2, 2});
  const Slots slots = slots_of(a);
  const std::vector<RankGroup> groups{{Axis::kExpert, false, 100, {0, 2}},
                                      {Axis::kData, true, 30, {0, 1, 2, 3}}};
  const PlacementPrice far = price_placement(slots, groups, {0, 1, 2, 3});
  // 200 of the pair cross, and two hops of the ring.
  CHECK(far.bytes.total(0) == doctest::Approx(60));
  CHECK(far.bytes.total(1) == doctest::Approx(260));
  CHECK(far.bytes.by_level[1][static_cast<size_t>(Axis::kExpert)] == doctest::Approx(200));
  const double inner = 1 / 100.0, node = 1 / 10.0;
  CHECK(far.seconds == doctest::Approx((60 * inner + 260 * node) / 4));
  const PlacementPrice near = price_placement(slots, groups, {0, 2, 1, 3});
  CHECK(near.seconds == doctest::Approx((260 * inner + 60 * node) / 4));
  const Placing placing = place_ranks(slots, groups, 4);
  CHECK(placing.is_best);
  CHECK(placing.seconds == doctest::Approx(near.seconds));
  CHECK(placing.given_seconds == doctest::Approx(far.seconds));
}

TEST_CASE("small cases are placed as well as the best of all orders") {
  std::mt19937 random(20261122);
  int proven = 0;
  for (int trial = 0; trial < 60; ++trial) {
    CAPTURE(trial);
    const Case c = any_case(random, 8);
    const Slots slots = slots_of(c.allocation);
    const double best = brute_force_of_groups(slots, c.groups, c.num_ranks);
    const Placing placing = place_ranks(slots, c.groups, c.num_ranks);
    check_sound(slots, placing, c.num_ranks);
    CHECK(placing.seconds == doctest::Approx(best).epsilon(1e-9));
    proven += placing.is_best;
    // Without the search of all: how near packing and swaps come.
    const Placing quick = place_ranks(slots, c.groups, c.num_ranks, {.max_branches = 0});
    CHECK(quick.seconds <= best * 1.02);
    if (quick.is_best) CHECK(quick.seconds == doctest::Approx(best).epsilon(1e-9));
  }
  CHECK(proven == 60);
}

TEST_CASE("a swap's gain is the difference of two prices") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 40; ++trial) {
    const Case c = any_case(random, 40);
    const Slots slots = slots_of(c.allocation);
    if (slots.num_boundaries() == 0) continue;
    RankSlots order(static_cast<size_t>(c.num_ranks));
    std::iota(order.begin(), order.end(), 0);
    PlacementSearch search(slots, c.groups, order);
    for (int swap = 0; swap < 20; ++swap) {
      const auto a = static_cast<int32_t>(random() % slots.node.size());
      const auto b = static_cast<int32_t>(random() % slots.node.size());
      if (slots.unit[0][a] == slots.unit[0][b]) continue;
      const double before = seconds(slots, c.groups, search.placement());
      const double gain = search.gain(a, b) / c.num_ranks;
      search.swap(a, b);
      const double after = seconds(slots, c.groups, search.placement());
      CHECK(std::abs(before - gain - after) <= 1e-9 * before);
    }
  }
}

TEST_CASE("the same input gives the same placement") {
  std::mt19937 random(3);
  const Case c = any_case(random, 64);
  const Slots slots = slots_of(c.allocation);
  CHECK(place_ranks(slots, c.groups, c.num_ranks).ranks ==
        place_ranks(slots, c.groups, c.num_ranks).ranks);
}

TEST_CASE("expert groups of four nodes go onto switches that hold four, not across them") {
  // Switches of 3, 4 and 5 nodes of 2, listed so: in order the first two groups are torn apart.
  std::vector<std::vector<int>> paths;
  for (const auto& [unit, size] : {std::pair{0, 3}, {1, 4}, {2, 5}})
    for (int i = 0; i < size; ++i) paths.push_back({unit, 0});
  const cluster::Allocation a = allocation(paths, std::vector<int64_t>(12, 2));
  const Slots slots = slots_of(a);
  std::vector<RankGroup> groups;
  for (int32_t g = 0; g < 3; ++g) {
    RankGroup group{Axis::kExpert, false, 100, std::vector<int32_t>(8)};
    std::iota(group.ranks.begin(), group.ranks.end(), 8 * g);
    groups.push_back(group);
  }
  const Placing placing = place_ranks(slots, groups, 24);
  const auto num_switches = [&](const RankGroup& group) {
    std::set<int32_t> units;
    for (const int32_t rank : group.ranks)
      units.insert(slots.unit[1][static_cast<size_t>(placing.ranks[static_cast<size_t>(rank)])]);
    return units.size();
  };
  size_t torn = 0;
  for (const RankGroup& group : groups) torn += num_switches(group) > 1;
  CHECK(torn == 1);
  CHECK(placing.seconds < 0.95 * placing.given_seconds);
}

TEST_CASE("a placement is called the best only when the search of all has ended") {
  // Four groups of three on three nodes of four: one is torn, though each alone would not be.
  const cluster::Allocation a = allocation({{0, 0}, {0, 0}, {0, 0}}, {4, 4, 4});
  std::vector<RankGroup> groups;
  for (int32_t g = 0; g < 4; ++g)
    groups.push_back({Axis::kExpert, false, 100, {3 * g, 3 * g + 1, 3 * g + 2}});
  CHECK(place_ranks(slots_of(a), groups, 12).is_best);
  CHECK(!place_ranks(slots_of(a), groups, 12, {.max_branches = 1}).is_best);
}

TEST_CASE("nodes in random order: the median of what they cost") {
  // Two groups of two nodes on two switches: as listed none is torn, in two of three orders both
  // are.
  const cluster::Allocation a = allocation({{0, 0}, {0, 0}, {1, 0}, {1, 0}}, {1, 1, 1, 1});
  const Slots slots = slots_of(a);
  const std::vector<RankGroup> groups{{Axis::kExpert, false, 100, {0, 1}},
                                      {Axis::kExpert, false, 100, {2, 3}}};
  const Placing placing = place_ranks(slots, groups, 4);
  CHECK(placing.seconds == placing.given_seconds);
  CHECK(placing.least_seconds == doctest::Approx(placing.seconds));
  CHECK(placing.random_seconds == doctest::Approx(seconds(slots, groups, {0, 2, 1, 3})));
  CHECK(placing.random_seconds > placing.given_seconds);
}

TEST_CASE("every rule packs every rank once, whatever the shape") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 100; ++trial) {
    const Case c = any_case(random, 60);
    const Slots slots = slots_of(c.allocation);
    const auto blocks = rank_blocks(c.groups, c.num_ranks);
    for (const PackRule rule : kPackRules) {
      const RankSlots placement = pack_ranks(slots, blocks, rule);
      CHECK(std::set(placement.begin(), placement.end()).size() ==
            static_cast<size_t>(c.num_ranks));
      CHECK(std::ranges::min(placement) >= 0);
      CHECK(std::ranges::max(placement) < slots.size());
    }
  }
}

TEST_CASE("an exchange that stays on its switch is faster in virtual time, too") {
  // Two switches of two nodes of four, listed in turn; groups of eight ranks.
  const cluster::Allocation a = allocation({{0, 0}, {1, 0}, {0, 0}, {1, 0}}, {4, 4, 4, 4});
  const Slots slots = slots_of(a);
  std::vector<RankGroup> groups(2, {Axis::kExpert, false, 1e6, std::vector<int32_t>(8)});
  std::iota(groups[0].ranks.begin(), groups[0].ranks.end(), 0);
  std::iota(groups[1].ranks.begin(), groups[1].ranks.end(), 8);
  const Placing placing = place_ranks(slots, groups, 16);
  RankSlots given(16);
  std::iota(given.begin(), given.end(), 0);
  const strategy::Strategy flat;
  const auto before = placed_exchange_seconds(a, slots, groups, given, 1e5, flat);
  const auto after = placed_exchange_seconds(a, slots, groups, placing.ranks, 1e5, flat);
  REQUIRE(before);
  REQUIRE(after);
  CHECK(*after < 0.7 * *before);
  CHECK(!placed_exchange_seconds(a, slots, {}, given, 1e5, flat));
}

}  // namespace piper::placement
