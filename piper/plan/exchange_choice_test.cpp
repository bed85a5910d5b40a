#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/plan/exchange_choice.h>
#include <piper/sim/fabric.h>
#include <tests/switches.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace piper::plan {
namespace {

using strategy::AllToAll;

// Nodes of ranks behind NICs, in groups; inner links `inner` times as fast as a NIC.
struct ExchangeMachine {
  int64_t nodes, ranks, nics;
  double inner, latency_seconds;
  collective::Topology topology() const { return collective::even_nodes(nodes, ranks, nics); }
  sim::Fabric fabric() const {
    const collective::Topology of = topology();
    sim::Fabric fabric;
    fabric.costs.send_seconds = 2e-6;
    constexpr double kNic = 10e9;
    sim::add_nodes(fabric, of.unit[0], of.nic,
                   {.inner_bytes_per_second = inner * kNic,
                    .nic_bytes_per_second = kNic,
                    .latency_seconds = latency_seconds / 4});
    if (nodes > 1)
      fabric.levels.push_back(
          {.name = "system",
           .latency_seconds = latency_seconds,
           .unit = std::vector<int32_t>(static_cast<size_t>(nodes * ranks), 0)});
    return fabric;
  }
};

// Even, or with a few hot targets.
collective::CountOf pattern(int64_t bytes, bool is_hot, uint32_t seed) {
  if (!is_hot) return [bytes](int64_t, int64_t) { return bytes; };
  return [=](int64_t from, int64_t to) {
    return (to * 7 + seed) % 4 == 0 ? 4 * bytes : (from + to + seed) % 3 == 0 ? 0 : bytes;
  };
}

}  // namespace

TEST_CASE("the choice is within 5 % of the best configuration of a finer grid, over 500 cases") {
  std::mt19937 generator(20261122);
  const auto one_of = [&](std::initializer_list<double> values) {
    return *(values.begin() + generator() % values.size());
  };
  double worst = 0, sum = 0;
  const int64_t kCases = testing::repetitions({.usual = 150, .full = 500});
  for (int64_t i = 0; i < kCases; ++i) {
    const auto ranks = static_cast<int64_t>(one_of({1, 2, 4}));
    const ExchangeMachine machine{static_cast<int64_t>(one_of({1, 2, 3, 4, 6})), ranks,
                                  std::min(ranks, static_cast<int64_t>(one_of({1, 2, 4}))),
                                  one_of({2, 4, 8}), one_of({1e-6, 5e-6, 20e-6})};
    const auto bytes = static_cast<int64_t>(std::exp2(4 + static_cast<int>(generator() % 17)));
    const collective::CountOf count = pattern(bytes, generator() % 2 == 0, generator() % 16);
    const sim::Fabric fabric = machine.fabric();
    const collective::Topology topology = machine.topology();
    const ExchangeChoice choice = choose_exchange(fabric, topology, count);
    double best = choice.best().seconds;
    for (const AllToAll algorithm : strategy::kAllToAlls)
      best = std::min(best, exchange_seconds(fabric, topology, count, algorithm));
    for (const double chunk :
         {1500.0, 6000.0, 12000.0, 24000.0, 48000.0, 100000.0, 200000.0, 400000.0})
      best = std::min(best, exchange_seconds(fabric, topology, count, AllToAll::kHalo,
                                             static_cast<int64_t>(chunk)));
    const double behind =
        best > 0 ? choice.best().seconds / best - 1 : 0;  // one rank alone: nothing
    worst = std::max(worst, behind);
    sum += behind;
  }
  MESSAGE(fmt::format("behind the best of the finer grid: mean {:.2f} %, worst {:.2f} %",
                      100 * sum / kCases, 100 * worst));
  CHECK(worst <= 0.05);
}

TEST_CASE("small messages go by way of few, large ones straight or in pieces") {
  const ExchangeMachine machine{8, 4, 1, 8, 20e-6};
  const auto best = [&](int64_t bytes) {
    return choose_exchange(machine.fabric(), machine.topology(), pattern(bytes, false, 0)).best();
  };
  CHECK(collective::forwards(best(16).algorithm));
  const ExchangeChoice large =
      choose_exchange(machine.fabric(), machine.topology(), pattern(1 << 20, false, 0));
  CHECK(large.best().seconds <= 1.1 * large.straight_limit_seconds);
}

}  // namespace piper::plan
