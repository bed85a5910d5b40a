#include <piper/cli/alltoall_prediction.h>
#include <piper/comm/exchange_limit.h>
#include <piper/sim/fabric.h>
#include <piper/sim/flow_limit.h>

#include <algorithm>

namespace piper::cli {
namespace {

// As the TCP wire does it: larger messages are offered, all of them go in frames.
constexpr int64_t kEagerBytes = 256 << 10, kFrameBytes = 9000;

double latency(const cluster::Cluster& cluster, size_t level) {
  return cluster.levels[std::min(level, cluster.levels.size() - 1)].link.latency_seconds;
}

void add_groups(sim::Fabric& fabric, const collective::Topology& topology,
                const comm::LinkRates& rates, const cluster::Cluster& cluster) {
  for (size_t level = 1; level < topology.unit.size(); ++level) {
    const std::vector<int32_t>& unit = topology.unit[level];
    sim::FabricLevel added{
        .name = "group", .latency_seconds = latency(cluster, level), .unit = unit};
    const int32_t num_units = *std::ranges::max_element(unit) + 1;
    const double rate = rates.uplink[level - 1];
    for (int32_t u = 0; u < num_units; ++u) {
      const bool narrow = rate > 0 && num_units > 1;
      added.out.push_back(narrow ? fabric.add_port("group out", rate) : sim::kNoPort);
      added.in.push_back(narrow ? fabric.add_port("group in", rate) : sim::kNoPort);
    }
    fabric.levels.push_back(std::move(added));
  }
  const std::vector<int32_t>& last = fabric.levels.back().unit;
  if (std::ranges::all_of(last, [](int32_t unit) { return unit == 0; })) return;
  fabric.levels.push_back({.name = "all",
                           .latency_seconds = latency(cluster, topology.unit.size()),
                           .unit = std::vector<int32_t>(last.size(), 0)});
}

}  // namespace

std::optional<double> predicted_seconds(const comm::Exchange& exchange,
                                        const collective::Topology& topology, int64_t num_ranks,
                                        const cluster::Cluster& cluster) {
  const comm::LinkRates rates = comm::link_rates(cluster, topology);
  const bool several = *std::ranges::max_element(topology.unit.front()) > 0;
  if (!exchange.steps || rates.inner <= 0 || (several && rates.nic <= 0)) return std::nullopt;
  sim::Fabric fabric;
  fabric.costs.eager_bytes = kEagerBytes;
  fabric.costs.rendezvous = sim::Rendezvous::kOffer;
  fabric.costs.packet_bytes = kFrameBytes;
  sim::add_nodes(fabric, topology.unit.front(), topology.nic,
                 {.inner_bytes_per_second = rates.inner,
                  .nic_bytes_per_second = rates.nic,
                  .latency_seconds = latency(cluster, 0)});
  add_groups(fabric, topology, rates, cluster);
  return sim::price(num_ranks, exchange.steps, fabric);
}

}  // namespace piper::cli
