#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/balance/copies.h>

#include <algorithm>
#include <limits>
#include <random>

using namespace piper;
using namespace piper::balance;

namespace {

// The least rows of the busiest rank, by trying all copies of experts of others in one slot a rank.
int64_t least_busiest_with_a_copy(const ExpertPlacement& homes, const Loads& loads) {
  std::vector<std::vector<int32_t>> copies(static_cast<size_t>(homes.num_ranks()));
  int64_t best = std::numeric_limits<int64_t>::max();
  const auto place = [&](const auto& self, size_t rank) -> void {
    if (rank == copies.size()) {
      best = std::min(best, std::ranges::max(rank_loads(homes.with_copies(copies), loads)));
      return;
    }
    for (int32_t e = 0; e < homes.num_experts(); ++e) {
      if (homes.rank_of(e) == static_cast<int64_t>(rank)) continue;
      copies[rank] = {e};
      self(self, rank + 1);
    }
  };
  place(place, 0);
  return best;
}

}  // namespace

TEST_CASE("a hot expert is shared by the ranks that have least, the homes stay") {
  const ExpertPlacement plain = ExpertPlacement::plain(4, 2);
  const ExpertPlacement shared = share_hot(plain, {80, 0, 10, 10}, 1);
  CHECK(shared.homes() == plain);
  CHECK(shared.copies_of(0).size() == 2);
  CHECK(rank_loads(shared, {80, 0, 10, 10})[1] >= 50);
  CHECK(slots_for_copies(shared) == 1);
}

TEST_CASE("a shadow is on every rank, its home's own slot holds the next hottest of others") {
  const ExpertPlacement made = shadow(ExpertPlacement::plain(6, 3), {1, 9, 2, 8, 3, 4}, 1);
  CHECK(made == ExpertPlacement({{0, 1, 3}, {2, 3, 1}, {4, 5, 1}}, 6));
}

TEST_CASE("copies hold to the rules on drawn loads, and near the best of all") {
  std::mt19937 random(7);
  double worst = 1, sum = 0;
  constexpr int kCases = 60;
  for (int i = 0; i < kCases; ++i) {
    Loads loads(6);
    for (int64_t& load : loads) load = static_cast<int64_t>(random() % 100);
    loads[random() % 6] += static_cast<int64_t>(random() % 400);
    const ExpertPlacement homes = ExpertPlacement::plain(6, 3);
    const ExpertPlacement shared = share_hot(homes, loads, 1);
    CHECK(shared.has_homes_first());
    CHECK(shared.num_places() == 9);
    CHECK(shared.homes() == homes);
    const auto reached = static_cast<double>(std::ranges::max(rank_loads(shared, loads)));
    CHECK(reached <= static_cast<double>(std::ranges::max(rank_loads(homes, loads))));
    const double ratio = reached / static_cast<double>(least_busiest_with_a_copy(homes, loads));
    worst = std::max(worst, ratio);
    sum += ratio / kCases;
  }
  MESSAGE(fmt::format("busiest rank over the best of all copies: mean {:.3f}, worst {:.3f}", sum,
                      worst));
  CHECK(sum < 1.05);
}

TEST_CASE("every rank can hold every expert, whatever the load") {
  for (const Loads& loads : {Loads{0, 0, 0, 0}, Loads{5, 0, 0, 1}}) {
    CHECK(rank_loads(share_hot(ExpertPlacement::plain(4, 2), loads, 2), loads)[0] * 2 ==
          loads[0] + loads[3] + (loads[0] % 2) + (loads[3] % 2));
    CHECK(shadow(ExpertPlacement::plain(4, 2), loads, 2).num_places() == 8);
  }
}
