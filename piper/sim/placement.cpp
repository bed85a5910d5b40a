#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/links.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

namespace piper::sim {
namespace {

int64_t num_nodes_of(const cluster::Cluster& cluster) {
  return cluster.num_devices() / cluster.devices_per_node();
}

void require(const cluster::Cluster& cluster, const char* what, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    throw InvalidInput("cluster " + cluster.name + ": " + std::to_string(value) + " " + what +
                       "; allowed: 1 to " + std::to_string(most));
}

Placement whole_nodes(const cluster::Cluster& cluster, const std::vector<int64_t>& nodes) {
  Placement placement;
  const int64_t size = cluster.devices_per_node();
  for (const int64_t node : nodes)
    for (int64_t d = 0; d < size; ++d) placement.device.push_back(node * size + d);
  return placement;
}

// Units of a level that the members lie in, numbered in the order of their devices.
std::vector<int32_t> units_of(const cluster::Cluster& cluster, const Placement& placement,
                              size_t level) {
  std::map<int64_t, int32_t> number;
  const int64_t size = cluster.devices_of_level(level);
  for (const int64_t device : placement.device) number[device / size];
  int32_t next = 0;
  for (auto& [unit, index] : number) index = next++;
  std::vector<int32_t> units;
  for (const int64_t device : placement.device) units.push_back(number[device / size]);
  return units;
}

// Members of the level's units could send so much to the next level.
void add_unit_ports(const cluster::Cluster& cluster, size_t level, Fabric& fabric,
                    const std::map<int32_t, double>& below) {
  FabricLevel& units = fabric.levels[level];
  const double rate = cost::device_bandwidth(cluster, level + 1) *
                      static_cast<double>(cluster.devices_of_level(level));
  for (const auto& [unit, sent] : below) {
    const bool narrow = rate < sent * (1 - 1e-9);
    const std::string name = units.name + " " + std::to_string(unit);
    units.out.push_back(narrow ? fabric.add_port(name + ", out", rate) : kNoPort);
    units.in.push_back(narrow ? fabric.add_port(name + ", in", rate) : kNoPort);
  }
}

// What leaves the units of a level at most: the sum over what lies below.
std::map<int32_t, double> rates_of_units(const Fabric& fabric, size_t level) {
  std::map<int32_t, std::map<int32_t, double>> ports;  // by unit: port or lower unit, and its rate
  const auto below = level > 1 ? rates_of_units(fabric, level - 1) : std::map<int32_t, double>{};
  for (size_t m = 0; m < fabric.member_out.size(); ++m) {
    const int32_t unit = fabric.levels[level].unit[m];
    if (level == 1) {
      const int32_t port = fabric.nic_out[m];
      ports[unit][port] = fabric.bytes_per_second[static_cast<size_t>(port)];
      continue;
    }
    const FabricLevel& lower = fabric.levels[level - 1];
    const int32_t id = lower.unit[m];
    const int32_t port = lower.out[static_cast<size_t>(id)];
    ports[unit][id] =
        port == kNoPort ? below.at(id) : fabric.bytes_per_second[static_cast<size_t>(port)];
  }
  std::map<int32_t, double> rates;
  for (const auto& [unit, list] : ports)
    for (const auto& [id, rate] : list) rates[unit] += rate;
  return rates;
}

}  // namespace

Placement packed(const cluster::Cluster& cluster, int64_t num_nodes, int64_t members_per_node) {
  require(cluster, "nodes", num_nodes, num_nodes_of(cluster));
  const int64_t size = cluster.devices_per_node();
  if (members_per_node == 0) members_per_node = size;
  require(cluster, "members a node", members_per_node, size);
  Placement placement;
  for (int64_t node = 0; node < num_nodes; ++node)
    for (int64_t d = 0; d < members_per_node; ++d) placement.device.push_back(node * size + d);
  return placement;
}

Placement scattered(const cluster::Cluster& cluster, int64_t num_nodes, size_t level,
                    int64_t num_units) {
  PIPER_CHECK(level > 0 && level < cluster.levels.size());
  require(cluster, "nodes", num_nodes, num_nodes_of(cluster));
  require(cluster, "units", num_units, cluster.num_devices() / cluster.devices_of_level(level));
  const int64_t nodes_of_unit = cluster.devices_of_level(level) / cluster.devices_per_node();
  const int64_t nodes_below = cluster.devices_of_level(level - 1) / cluster.devices_per_node();
  const int64_t units_below = nodes_of_unit / nodes_below;
  require(cluster, "nodes in so many units", num_nodes, nodes_of_unit * num_units);
  std::vector<int64_t> nodes;
  for (int64_t u = 0; u < num_units; ++u) {
    std::vector<int64_t> here;
    for (int64_t i = u; i < num_nodes; i += num_units) {
      const int64_t turn = i / num_units;
      here.push_back(u * nodes_of_unit + turn % units_below * nodes_below + turn / units_below);
    }
    std::ranges::sort(here);
    nodes.insert(nodes.end(), here.begin(), here.end());
  }
  return whole_nodes(cluster, nodes);
}

Placement drawn(const cluster::Cluster& cluster, int64_t num_nodes, uint64_t seed) {
  require(cluster, "nodes", num_nodes, num_nodes_of(cluster));
  std::vector<int64_t> nodes(static_cast<size_t>(num_nodes_of(cluster)));
  std::iota(nodes.begin(), nodes.end(), 0);
  std::mt19937_64 random(seed);
  // Not std::shuffle: its order is the library's own.
  for (size_t i = 0; i < static_cast<size_t>(num_nodes); ++i)
    std::swap(nodes[i], nodes[i + random() % (nodes.size() - i)]);
  nodes.resize(static_cast<size_t>(num_nodes));
  std::ranges::sort(nodes);
  return whole_nodes(cluster, nodes);
}

int32_t nic_of(const cluster::Cluster& cluster, int64_t device) {
  if (cluster.levels.size() < 2) return 0;
  return static_cast<int32_t>(device % cluster.devices_per_node() /
                              cost::devices_of_port(cluster, 1));
}

collective::Topology topology_of(const cluster::Cluster& cluster, const Placement& placement) {
  collective::Topology topology;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    std::vector<int32_t> units = units_of(cluster, placement, level);
    const bool tells_apart = !units.empty() && std::ranges::max(units) > 0;
    if (level > 0 && (!tells_apart || units == topology.unit.back())) continue;
    topology.unit.push_back(std::move(units));
  }
  for (const int64_t device : placement.device) topology.nic.push_back(nic_of(cluster, device));
  return topology;
}

Fabric fabric_of(const cluster::Cluster& cluster, const Placement& placement) {
  std::vector<int32_t> nics;
  for (const int64_t device : placement.device) nics.push_back(nic_of(cluster, device));
  double least = INFINITY;
  for (const cluster::Level& level : cluster.levels)
    least = std::min(least, level.link.latency_seconds);
  const auto stated = cluster.numbers.find("message_seconds");
  const double startup =
      std::min(least, stated == cluster.numbers.end() ? kMessageSeconds : stated->second);
  Fabric fabric;
  fabric.costs.send_seconds = startup;
  fabric.costs.local_seconds = cluster.fixed_task_seconds;
  fabric.costs.local_bytes_per_second = cluster.memory_bytes_per_second;
  const std::vector<int32_t> node = units_of(cluster, placement, 0);
  const bool one_node = std::ranges::max(node) == 0;
  add_nodes(fabric, node, nics,
            {.inner_bytes_per_second = cost::device_bandwidth(cluster, 0),
             .nic_bytes_per_second =
                 one_node ? 0
                          : cost::device_bandwidth(cluster, 1) *
                                static_cast<double>(cost::devices_of_port(cluster, 1)),
             .latency_seconds = cluster.levels[0].link.latency_seconds - startup});
  for (size_t level = 1; level < cluster.levels.size(); ++level) {
    if (std::ranges::max(fabric.levels.back().unit) == 0) break;
    fabric.levels.push_back(
        {.name = cluster.levels[level].name,
         .latency_seconds = cluster.levels[level].link.latency_seconds - startup,
         .unit = units_of(cluster, placement, level)});
    if (std::ranges::max(fabric.levels.back().unit) > 0)
      add_unit_ports(cluster, level, fabric, rates_of_units(fabric, level));
  }
  return fabric;
}

}  // namespace piper::sim
