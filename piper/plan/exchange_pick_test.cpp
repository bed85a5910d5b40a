#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/plan/exchange_choice.h>
#include <piper/plan/exchange_pick.h>
#include <piper/sim/placement.h>
#include <testing/plan/random_cluster.h>
#include <testing/plan/regret.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace piper::plan {

using strategy::AllToAll;

TEST_CASE(
    "what plan chooses is within 5 % of the best simulated configuration, over some 500 cases") {
  std::mt19937 random(20261122);
  Regret even, hot;
  for (int i = 0; i < 540; ++i) {
    const cluster::Cluster cluster = random_cluster(random);
    const int64_t per_node = cluster.devices_per_node();
    const int64_t stride = std::min(per_node, int64_t{1} << random() % 3);
    const int64_t most = std::min<int64_t>(cluster.num_devices() / stride, 16);
    const int64_t size = std::min(most, int64_t{2} << random() % 4);
    const bool is_hot = random() % 3 == 0;
    const double times = is_hot ? 1.5 + static_cast<double>(random() % 4) : 1;
    const int64_t bytes = int64_t{64} << random() % 18;
    const cost::Group group{.stride = stride, .size = size};
    const auto n = static_cast<double>(size);
    const cost::ExchangeLoad load{static_cast<double>(bytes), is_hot ? times : 1};
    const double others = is_hot ? (n - times) / (n - 1) : 1;
    if (others <= 0) continue;  // one of few members cannot get so much
    const auto count = [&](int64_t, int64_t to) {
      return std::llround((to == 0 ? times : others) * static_cast<double>(bytes));
    };
    sim::Placement placement;
    for (int64_t m = 0; m < size; ++m) placement.device.push_back(m * stride);
    const sim::Fabric fabric = sim::fabric_of(cluster, placement);
    const collective::Topology topology = sim::topology_of(cluster, placement);
    const cost::AllToAllConfig chosen = pick_exchange(cluster, group, load);
    const double seconds =
        exchange_seconds(fabric, topology, count, chosen.algorithm, chosen.chunk_bytes);
    const ExchangeChoice all = choose_exchange(fabric, topology, count);
    const double behind = seconds / all.best().seconds - 1;
    (is_hot ? hot : even).add(behind);
  }
  for (const auto& [what, b] : {std::pair("even", even), std::pair("one hot", hot)}) {
    MESSAGE(fmt::format(
        "{}, {} cases: behind the best simulated configuration mean {:.2f} %, worst {:.2f} %, "
        "beyond 5 %: "
        "{}",
        what, b.num, 100 * b.sum / static_cast<double>(b.num), 100 * b.worst, b.num_beyond));
    CHECK(b.worst <= 0.05);
  }
}

}  // namespace piper::plan
