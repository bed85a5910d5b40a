#include <piper/base/error.h>
#include <piper/sim/fabric_shapes.h>

#include <algorithm>
#include <map>

namespace piper::sim {
namespace {

void require_counts(const NodeShape& node, const std::vector<LevelShape>& levels) {
  std::vector<std::string> problems;
  if (node.num_members < 1) problems.emplace_back("a node without members; allowed: 1 or more");
  if (node.num_nics < 1 || node.num_members < 1 || node.num_members % node.num_nics != 0)
    problems.push_back(std::to_string(node.num_nics) + " NICs for " +
                       std::to_string(node.num_members) + " members; allowed: what divides them");
  for (const LevelShape& level : levels)
    if (level.num_units < 1)
      problems.push_back("level " + level.name + " holds " + std::to_string(level.num_units) +
                         " units; allowed: 1 or more");
  if (!problems.empty()) throw InvalidInput(problems);
}

// Nodes 0 .. num_nodes-1.
Fabric nodes_of(const NodeShape& shape, int64_t num_nodes) {
  std::vector<int32_t> node, nic;
  for (int64_t i = 0; i < num_nodes; ++i)
    for (int64_t m = 0; m < shape.num_members; ++m) {
      node.push_back(static_cast<int32_t>(i));
      nic.push_back(static_cast<int32_t>(m * shape.num_nics / shape.num_members));
    }
  Fabric fabric;
  add_nodes(fabric, node, nic,
            {shape.inner_bytes_per_second, shape.nic_bytes_per_second, shape.latency_seconds});
  return fabric;
}

void add_outside_ports(Fabric& fabric, size_t level, int64_t num_units, double rate) {
  FabricLevel& l = fabric.levels[level];
  for (int64_t u = 0; u < num_units; ++u) {
    const std::string name = l.name + " " + std::to_string(u);
    l.out.push_back(rate > 0 ? fabric.add_port(name + ", out", rate) : kNoPort);
    l.in.push_back(rate > 0 ? fabric.add_port(name + ", in", rate) : kNoPort);
  }
}

double all_nics(const NodeShape& node) {
  return static_cast<double>(node.num_nics) * node.nic_bytes_per_second;
}

}  // namespace

Fabric tree(const NodeShape& node, const std::vector<LevelShape>& levels) {
  require_counts(node, levels);
  std::vector<int64_t> num_units{1};  // of level l, nodes first; from the outside in
  for (size_t l = levels.size(); l-- > 0;)
    num_units.push_back(num_units.back() * levels[l].num_units);
  std::ranges::reverse(num_units);
  Fabric fabric = nodes_of(node, num_units[0]);
  for (size_t l = 0; l < levels.size(); ++l) {
    FabricLevel level{.name = levels[l].name, .latency_seconds = levels[l].latency_seconds};
    for (const int32_t unit : fabric.levels.back().unit)
      level.unit.push_back(unit / static_cast<int32_t>(levels[l].num_units));
    fabric.levels.push_back(std::move(level));
    if (levels[l].between_bytes_per_second > 0)
      add_links_between(fabric, l, levels[l].between_bytes_per_second);
    if (l + 1 < levels.size())
      add_outside_ports(fabric, l + 1, num_units[l + 1], levels[l].outside_bytes_per_second);
  }
  return fabric;
}

Fabric dragonfly(const DragonflyShape& shape) {
  LevelShape on_switch{
      .name = "switch", .num_units = shape.nodes_per_switch, .latency_seconds = shape.hop_seconds};
  LevelShape group{.name = "group",
                   .num_units = shape.switches_per_group,
                   .latency_seconds = 2 * shape.hop_seconds};
  LevelShape system{.name = "system",
                    .num_units = shape.num_groups,
                    .latency_seconds = 4 * shape.hop_seconds + shape.global_seconds};
  if (shape.adaptive) {
    on_switch.outside_bytes_per_second =
        static_cast<double>(shape.switches_per_group - 1) * shape.local_bytes_per_second;
    group.outside_bytes_per_second =
        static_cast<double>(shape.num_groups - 1) * shape.global_bytes_per_second;
  } else {
    group.between_bytes_per_second = shape.local_bytes_per_second;
    system.between_bytes_per_second = shape.global_bytes_per_second;
  }
  return tree(shape.node, {on_switch, group, system});
}

Fabric fat_tree(const FatTreeShape& shape) {
  const double uplinks =
      static_cast<double>(shape.nodes_per_leaf) * all_nics(shape.node) / shape.oversubscription;
  return tree(shape.node, {{.name = "leaf",
                            .num_units = shape.nodes_per_leaf,
                            .latency_seconds = shape.hop_seconds,
                            .outside_bytes_per_second = uplinks},
                           {.name = "system",
                            .num_units = shape.num_leaves,
                            .latency_seconds = 3 * shape.hop_seconds}});
}

Fabric rail_optimised(const RailShape& shape) {
  require_counts(shape.node, {{.name = "pod", .num_units = shape.nodes_per_pod},
                              {.name = "system", .num_units = shape.num_pods}});
  Fabric fabric = nodes_of(shape.node, shape.nodes_per_pod * shape.num_pods);
  const int64_t num_rails = shape.node.num_nics * shape.num_pods;
  FabricLevel rail{.name = "rail switch", .latency_seconds = shape.hop_seconds};
  const int64_t members = shape.node.num_members;
  for (int64_t m = 0; m < fabric.num_members(); ++m) {
    const int64_t pod = m / members / shape.nodes_per_pod;
    rail.unit.push_back(static_cast<int32_t>(pod * shape.node.num_nics +
                                             m % members * shape.node.num_nics / members));
  }
  fabric.levels.push_back(std::move(rail));
  if (num_rails == 1) return fabric;
  add_outside_ports(fabric, 1, num_rails,
                    static_cast<double>(shape.nodes_per_pod) * shape.node.nic_bytes_per_second /
                        shape.oversubscription);
  fabric.levels.push_back({.name = "system",
                           .latency_seconds = 3 * shape.hop_seconds,
                           .unit = std::vector<int32_t>(fabric.member_out.size(), 0)});
  return fabric;
}

Fabric two_data_centres(const TwoCentresShape& shape) {
  return tree(shape.node, {{.name = "data centre",
                            .num_units = shape.nodes_per_centre,
                            .latency_seconds = 3 * shape.hop_seconds,
                            .outside_bytes_per_second = shape.line_bytes_per_second},
                           {.name = "world",
                            .num_units = 2,
                            .latency_seconds = 6 * shape.hop_seconds + shape.line_seconds}});
}

collective::Topology topology_of(const Fabric& fabric) {
  collective::Topology topology;
  for (const FabricLevel& level : fabric.levels) {
    std::map<int32_t, int32_t> outer;  // of each unit so far: the unit of this level
    bool nests = true;
    for (size_t m = 0; m < level.unit.size() && !topology.unit.empty(); ++m)
      nests &=
          outer.try_emplace(topology.unit.back()[m], level.unit[m]).first->second == level.unit[m];
    const bool is_all = std::ranges::max(level.unit) == 0;
    if (!nests || (is_all && !topology.unit.empty())) break;
    topology.unit.push_back(level.unit);
  }
  std::map<int32_t, std::map<int32_t, int32_t>> cards;  // by node: port to NIC
  for (size_t m = 0; m < fabric.nic_out.size(); ++m) {
    auto& of_node = cards[fabric.levels[0].unit[m]];
    topology.nic.push_back(
        of_node.try_emplace(fabric.nic_out[m], static_cast<int32_t>(of_node.size())).first->second);
  }
  return topology;
}

}  // namespace piper::sim
