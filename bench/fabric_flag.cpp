#include <bench/fabric_flag.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/sim/fabric_shapes.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace piper::cli {
namespace {

constexpr double kLineSeconds = 0.5e-3;  // about 100 km of fibre

// The first that divides it into several; the last is 1.
int64_t first_divisor(int64_t count, std::initializer_list<int64_t> wanted) {
  return *std::ranges::find_if(wanted,
                               [&](int64_t n) { return n == 1 || (count % n == 0 && count > n); });
}

sim::NodeShape node_of(const cluster::Cluster& cluster) {
  if (cluster.levels.size() < 2)
    throw InvalidInput(
        fmt::format("--fabric: {} has no network between nodes to redraw", cluster.name));
  const cluster::Level &inner = cluster.levels[0], &outer = cluster.levels[1];
  const int64_t nics = std::max<int64_t>(outer.num_nics, 1);
  const int64_t members = cluster.devices_per_node();
  return {.num_members = members,
          .num_nics = nics,
          .inner_bytes_per_second = inner.link.bytes_per_second,
          .nic_bytes_per_second = outer.nic_bytes_per_second > 0
                                      ? outer.nic_bytes_per_second
                                      : outer.link.bytes_per_second * static_cast<double>(members) /
                                            static_cast<double>(nics),
          .latency_seconds = inner.link.latency_seconds};
}

sim::Fabric bare(const FabricShape& shape, const cluster::Cluster& cluster, int64_t nodes) {
  const sim::NodeShape node = node_of(cluster);
  const double hop = cluster.levels[1].link.latency_seconds / 2;
  const double out = node.nic_bytes_per_second * static_cast<double>(node.num_nics);  // of a node
  if (shape.name == "fat-tree") {
    const int64_t leaf = first_divisor(nodes, {8, 4, 2, 1});
    return sim::fat_tree({node, leaf, nodes / leaf, shape.oversubscription, hop});
  }
  if (shape.name == "rails") {
    const int64_t pod = first_divisor(nodes, {8, 4, 2, 1});
    return sim::rail_optimised({node, pod, nodes / pod, shape.oversubscription, hop});
  }
  if (shape.name == "dragonfly") {
    const int64_t on_switch = first_divisor(nodes, {4, 2, 1});
    const int64_t switches = first_divisor(nodes / on_switch, {8, 4, 2, 1});
    const double of_switch = out * static_cast<double>(on_switch);
    return sim::dragonfly({.node = node,
                           .nodes_per_switch = on_switch,
                           .switches_per_group = switches,
                           .num_groups = nodes / on_switch / switches,
                           .local_bytes_per_second = of_switch,
                           .global_bytes_per_second =
                               of_switch * static_cast<double>(switches) / shape.oversubscription,
                           .hop_seconds = hop,
                           .global_seconds = hop});
  }
  if (nodes % 2 != 0)
    throw InvalidInput(
        fmt::format("--fabric two-centres: {} nodes; allowed: an even number", nodes));
  return sim::two_data_centres(
      {.node = node,
       .nodes_per_centre = nodes / 2,
       .hop_seconds = hop,
       .line_bytes_per_second = out * static_cast<double>(nodes / 2) / shape.oversubscription,
       .line_seconds = kLineSeconds});
}

}  // namespace

const std::vector<std::string>& fabric_shapes() {
  static const std::vector<std::string> shapes{"fat-tree", "rails", "dragonfly", "two-centres"};
  return shapes;
}

FabricShape parse_fabric_shape(const std::string& text) {
  const size_t colon = text.find(':');
  FabricShape shape{text.substr(0, colon), 1};
  bool good = std::ranges::find(fabric_shapes(), shape.name) != fabric_shapes().end();
  if (good && colon != std::string::npos) {
    const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
    const auto [last, error] = std::from_chars(begin, end, shape.oversubscription);
    good = error == std::errc() && last == end && shape.oversubscription >= 1 &&
           shape.oversubscription <= 1e6;
  }
  if (!good)
    throw InvalidInput(fmt::format(
        "--fabric is '{}'; allowed: {}, each alone or with how much narrower its uplinks are, from "
        "1 to 1e6 (fat-tree:2)",
        text, fmt::join(fabric_shapes(), ", ")));
  return shape;
}

sim::Fabric shaped_fabric(const FabricShape& shape, const cluster::Cluster& cluster,
                          int64_t num_nodes) {
  sim::Fabric fabric = bare(shape, cluster, num_nodes);
  fabric.costs = sim::fabric_of(cluster, sim::packed(cluster, 1)).costs;
  return fabric;
}

}  // namespace piper::cli
