// Groups of more than 64 ranks: what plan chooses beside the best of all configurations, each
// simulated in full.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/plan/exchange_choice.h>
#include <piper/plan/exchange_pick.h>
#include <piper/sim/placement.h>
#include <testing/plan/random_cluster.h>
#include <testing/plan/regret.h>
#include <tests/switches.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <span>
#include <string>

namespace piper::plan {
namespace {

struct LargeCase {
  cluster::Cluster cluster;
  cost::Group group;
  double bytes = 0, hot = 1;
};

LargeCase random_large_case(std::mt19937& random, std::span<const int64_t> sizes, bool is_hot) {
  LargeCase c{.cluster = random_cluster(random), .group = {}};
  c.cluster.levels[2].num_members = 512;
  c.group.size = sizes[random() % sizes.size()];
  c.group.stride = std::min(c.cluster.devices_per_node(), int64_t{1} << random() % 3);
  c.bytes = static_cast<double>(int64_t{64} << random() % 18);
  c.hot = is_hot ? 1.5 + static_cast<double>(random() % 4) : 1;
  return c;
}

std::string text(const Regret& behind) {
  return fmt::format("mean {:.2f} %, worst {:.2f} %, beyond 5 %: {} of {}",
                     100 * behind.sum / static_cast<double>(behind.num), 100 * behind.worst,
                     behind.num_beyond, behind.num);
}

struct Gaps {
  Regret closed, picked;
  double slowest = 0;  // seconds of a pick

  void add(const LargeCase& c) {
    const auto n = static_cast<double>(c.group.size);
    const auto count = [&](int64_t, int64_t to) {
      return std::llround((to == 0 ? c.hot : (n - c.hot) / (n - 1)) * c.bytes);
    };
    sim::Placement placement;
    for (int64_t m = 0; m < c.group.size; ++m) placement.device.push_back(m * c.group.stride);
    const sim::Fabric fabric = sim::fabric_of(c.cluster, placement);
    const collective::Topology topology = sim::topology_of(c.cluster, placement);
    const double best = choose_exchange(fabric, topology, count).best().seconds;
    const auto behind = [&](const cost::AllToAllConfig& config) {
      return exchange_seconds(fabric, topology, count, config.algorithm, config.chunk_bytes) /
                 best -
             1;
    };
    const cost::ExchangeLoad load{c.bytes, c.hot};
    closed.add(behind(cost::best_all_to_all(cost::ExchangeSite(c.cluster, c.group), load).config));
    const auto begin = std::chrono::steady_clock::now();
    const cost::AllToAllConfig config = pick_exchange(c.cluster, c.group, load);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    slowest = std::max(slowest, took.count());
    picked.add(behind(config));
  }
};

void grid(std::span<const int64_t> sizes, int num, bool is_hot) {
  std::mt19937 random(20261122);
  Gaps gaps;
  for (int i = 0; i < num; ++i) gaps.add(random_large_case(random, sizes, is_hot));
  MESSAGE(fmt::format("{} to {} ranks, {}: closed form {}; picked {}, in at most {:.0f} ms",
                      sizes.front(), sizes.back(), is_hot ? "one hot" : "even", text(gaps.closed),
                      text(gaps.picked), 1e3 * gaps.slowest));
  CHECK(gaps.picked.worst <= 0.05);
}

// The number of random cases of each kind of load.
struct Draws {
  testing::Repetitions even, hot;
};

void check_choices(std::span<const int64_t> sizes, const Draws& draws) {
  grid(sizes, static_cast<int>(repetitions(draws.even)), false);
  grid(sizes, static_cast<int>(repetitions(draws.hot)), true);
}

}  // namespace

TEST_CASE(
    "what plan chooses for groups of 72 to 128 ranks is within 5 % of the best simulated "
    "configuration") {
  constexpr std::array<int64_t, 4> kSizes{72, 80, 96, 128};
  check_choices(kSizes, {.even = {4, 60}, .hot = {2, 60}});
}

TEST_CASE(
    "what plan chooses for groups of 160 to 512 ranks is within 5 % of the best simulated "
    "configuration") {
  constexpr std::array<int64_t, 3> kMiddle{160, 192, 256}, kLarge{320, 384, 512};
  check_choices(kMiddle, {.even = {1, 30}, .hot = {1, 30}});
  if (testing::full_counts()) check_choices(kLarge, {.even = {6, 6}, .hot = {6, 6}});
}

}  // namespace piper::plan
