#include <doctest/doctest.h>
#include <piper/balance/exhaustive.h>
#include <piper/balance/hill_climb.h>
#include <piper/balance/longest_first.h>
#include <piper/balance/pair_search.h>
#include <piper/balance/placement_pool.h>
#include <piper/balance/replicate.h>

#include <array>
#include <numeric>

using namespace piper;
using namespace piper::balance;

namespace {

int64_t busiest(const ExpertPlacement& placement, const Loads& loads) {
  return std::ranges::max(rank_loads(placement, loads));
}

int64_t migrated(const ExpertPlacement& from, const Rebalanced& to) {
  return num_migrated(moves_between(from, to.placement));
}

}  // namespace

TEST_CASE("loads of ranks, imbalance and its least are what the definitions say") {
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  CHECK(rank_loads(plain, {9, 1, 1, 1}) == std::vector<int64_t>{10, 2});
  CHECK(imbalance(plain, {9, 1, 1, 1}) == doctest::Approx(10.0 / 6));
  CHECK(least_imbalance({9, 1, 1, 1}, 2) == doctest::Approx(9.0 / 6));  // the busiest expert alone
  CHECK(least_imbalance({2, 1, 2, 1}, 2) == 1);
  CHECK(imbalance(plain, {0, 0, 0, 0}) == 1);
}

TEST_CASE("Algorithm 2 by hand: one exchange, then none that narrows the difference") {
  // The sums are 15 and 3, a difference of 12. Two of the four pairs, 9 for 2 and 6 for 1, leave 2,
  // the others 4; the printed comparison keeps the first. Then the sums are 8 and 10: every pair
  // leaves 4 or more.
  const Rebalanced result = hill_climb(ExpertPlacement::plain(4, 2), {9, 6, 2, 1});
  CHECK(to_text(result.placement) == "2 1 | 0 3");
  CHECK(result.num_swaps == 1);
  // T bounds the exchanges; 0 leaves everything.
  CHECK(hill_climb(ExpertPlacement::plain(4, 2), {9, 6, 2, 1}, 0).placement.is_plain());
  // It exchanges between the fullest and the emptiest alone, and stops where that pair cannot
  // improve, although the third rank could.
  const Loads stuck{10, 10, 6, 8, 2, 2, 2, 2, 9};
  const ExpertPlacement three = ExpertPlacement::plain(9, 3);
  CHECK(busiest(hill_climb(three, stuck).placement, stuck) >=
        busiest(pair_search(three, stuck).placement, stuck));
}

TEST_CASE("the pair search finds what Algorithm 2 cannot: a partner that is not the emptiest") {
  // Sums 12, 9 and 6. The fullest against the emptiest: 6 for 0 gives 6 and 12, no narrower; 6 for
  // 6 changes nothing. With the rank between, 6 for 5 gives 11 and 10.
  const Loads loads{6, 6, 4, 5, 0, 6};
  const ExpertPlacement plain = ExpertPlacement::plain(6, 3);
  CHECK(hill_climb(plain, loads).num_swaps == 0);
  const Rebalanced found = pair_search(plain, loads);
  CHECK(found.num_swaps >= 1);
  CHECK(busiest(found.placement, loads) < 12);
}

TEST_CASE("no search makes the busiest rank busier, and placements stay even") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const int64_t ranks = std::array<int64_t, 4>{1, 2, 4, 7}[seed % 4];
    const Loads loads = drawn_loads(seed, static_cast<size_t>(ranks * (1 + seed % 5)), 1000);
    const ExpertPlacement plain = ExpertPlacement::plain(std::ssize(loads), ranks);
    for (const Rebalanced& result : {hill_climb(plain, loads), pair_search(plain, loads)}) {
      CHECK(busiest(result.placement, loads) <= busiest(plain, loads));
      CHECK(result.placement.is_even());
      CHECK(result.placement.has_one_copy());
      CHECK(migrated(plain, result) <= 2 * result.num_swaps);
    }
    CHECK(longest_first(plain, loads).placement.is_even());
  }
}

TEST_CASE("against every placement of up to 12 experts on 4 ranks") {
  // What is asserted of the distance to the optimum are the guarantees: no search beats it, and
  // longest-first stays below Graham's 4/3 where equal numbers do not bind (numbers are free at
  // one expert a rank: it is the optimum). The distances themselves are `piper bench balance`'s.
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const size_t experts = 4 * (1 + seed % 3);
    const Loads loads = drawn_loads(seed, experts, 10000);
    const int64_t optimum = least_busiest(loads, 4);
    const ExpertPlacement plain = ExpertPlacement::plain(static_cast<int64_t>(experts), 4);
    const int64_t climbed = busiest(hill_climb(plain, loads).placement, loads);
    const int64_t searched = busiest(pair_search(plain, loads).placement, loads);
    const int64_t listed = busiest(longest_first(plain, loads).placement, loads);
    CHECK(climbed >= optimum);
    CHECK(searched >= optimum);
    CHECK(listed >= optimum);
    if (experts == 4) CHECK(listed == optimum);
    // At a local optimum no exchange with the busiest rank lowers the larger of the two: with two
    // experts a rank the busiest holds at most the optimum plus its lightest expert.
    if (experts == 8) CHECK(searched <= 2 * optimum);
  }
}

TEST_CASE("the pair search ends at the threshold with fewer migrations than without one") {
  int64_t with = 0, without = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const Loads loads = drawn_loads(seed, 32, 1000);
    const ExpertPlacement plain = ExpertPlacement::plain(32, 4);
    const Rebalanced rough = pair_search(plain, loads, {.threshold = 1.2});
    const Rebalanced fine = pair_search(plain, loads);
    with += migrated(plain, rough);
    without += migrated(plain, fine);
    if (imbalance(fine.placement, loads) <= 1.2) CHECK(imbalance(rough.placement, loads) <= 1.2);
    CHECK(migrated(plain, rough) <= migrated(plain, fine));
  }
  CHECK(with < without);
}

TEST_CASE("a budget bounds the migrations, an odd one and none too") {
  const Loads loads{100, 90, 80, 70, 1, 1, 1, 1};
  const ExpertPlacement plain = ExpertPlacement::plain(8, 2);
  int64_t last = busiest(plain, loads);
  for (int64_t most = 0; most <= 4; ++most) {
    CAPTURE(most);
    const Rebalanced result = pair_search(plain, loads, {.max_migrated = most});
    CHECK(migrated(plain, result) <= most);
    CHECK(busiest(result.placement, loads) <= last);
    last = busiest(result.placement, loads);
  }
  CHECK(pair_search(plain, loads, {.max_migrated = 1}).placement == plain);
  CHECK(pair_search(plain, loads, {.max_migrated = 2}).placement != plain);
}

TEST_CASE("where ranks may hold unequal numbers an expert moves alone") {
  const Loads loads{40, 30, 20, 10, 1, 1, 1, 1};
  const ExpertPlacement plain = ExpertPlacement::plain(8, 2);
  // One migration where an exchange needs two: 100 and 4 become 60 and 44.
  const Rebalanced one = pair_search(plain, loads, {.max_migrated = 1, .max_experts_per_rank = 6});
  CHECK(rank_loads(one.placement, loads) == std::vector<int64_t>{60, 44});
  CHECK(!one.placement.is_even());
  CHECK(one.placement.has_one_copy());
  const Rebalanced all = pair_search(plain, loads, {.max_experts_per_rank = 6});
  CHECK(busiest(all.placement, loads) <= busiest(pair_search(plain, loads).placement, loads));
}

TEST_CASE("an expert stays on its node where a partner there serves nearly as well") {
  // Rank 0 is full; rank 1, of its node, and rank 2 of the other could both take the load.
  const Loads loads{10, 10, 1, 2, 1, 1, 5, 5};
  const ExpertPlacement plain = ExpertPlacement::plain(8, 4);
  const auto leaves_node = [&](const SearchLimits& limits) {
    int64_t left = 0;
    for (const ExpertMove& move : moves_between(plain, pair_search(plain, loads, limits).placement))
      left += move.from_rank / 2 != move.to_rank / 2;
    return left;
  };
  const SearchLimits one_step{.max_migrated = 2};
  CHECK(leaves_node(one_step) == 2);
  SearchLimits aware = one_step;
  aware.ranks_per_node = 2;
  CHECK(leaves_node(aware) == 0);
}

TEST_CASE("the pool gives the placement that suits the newest load, or what there is") {
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  PlacementPool pool(2);
  CHECK(pool.choose(plain, {9, 8, 1, 1}).placement == plain);
  pool.plan(plain, {9, 8, 1, 1});
  pool.plan(plain, {9, 8, 1, 1});
  CHECK(pool.size() == 1);
  const Rebalanced chosen = pool.choose(plain, {90, 80, 10, 10});
  CHECK(imbalance(chosen.placement, {90, 80, 10, 10}) < 1.1);
  CHECK(pool.choose(plain, {5, 5, 5, 5}).placement == plain);  // nothing to gain
  pool.plan(plain, {9, 1, 8, 1});
  pool.plan(plain, {9, 1, 1, 8});
  CHECK(pool.size() <= 2);
}

// The example that DeepSeek publish with EPLB: 12 experts in 4 groups, 16 slots on 2 nodes of 4
// ranks.
TEST_CASE("redundant slots are those of EPLB's published example") {
  const RedundantSlots slots{.num_ranks = 8, .slots_per_rank = 2, .num_nodes = 2, .num_groups = 4};
  CHECK(to_text(replicate({90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86}, slots)) ==
        "5 6 | 5 7 | 8 4 | 3 4 | 10 9 | 10 2 | 0 1 | 11 1");
  CHECK(to_text(replicate({20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}, slots)) ==
        "7 10 | 6 8 | 6 11 | 8 9 | 2 4 | 5 1 | 5 0 | 3 1");
}

TEST_CASE("copies share the rows of their expert, and the busiest rank falls to the mean") {
  // Expert 0 has half of all rows. One slot more on each of 4 ranks: it is on all of them.
  const Loads loads{12, 2, 2, 2, 2, 2, 1, 1};
  const ExpertPlacement placed = replicate(loads, {.num_ranks = 4, .slots_per_rank = 3});
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(placed.held(rank).size() == 3);
    CHECK(std::ranges::count(placed.held(rank), 0) == 1);
  }
  const std::vector<int64_t> sums = rank_loads(placed, loads);
  CHECK(std::accumulate(sums.begin(), sums.end(), int64_t{0}) == 24);
  CHECK(imbalance(placed, loads) < least_imbalance(loads, 4));  // of one copy each
  // Rows that do not divide go to the first copies.
  CHECK(rank_loads(ExpertPlacement({{0, 1}, {0, 2}}, 3), {5, 1, 1}) == std::vector<int64_t>{4, 3});
}

TEST_CASE("no rank holds two copies of an expert, however hot") {
  for (const Loads& loads : {Loads{100, 0, 0, 0}, Loads{1, 1, 1, 1}, Loads{7, 7, 1, 0}})
    for (const int64_t each : {2, 3, 4}) {
      // The constructor refuses what a rank holds twice.
      const ExpertPlacement placed = replicate(loads, {.num_ranks = 4, .slots_per_rank = each});
      CHECK(placed.is_even());
      CHECK(std::ssize(placed.held(0)) == each);
    }
}
