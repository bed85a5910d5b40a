#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/sim/flow_routes.h>
#include <testing/sim/example_flows.h>

#include <cmath>

namespace piper::sim {
namespace {

std::vector<std::string> names(const Fabric& fabric, int64_t from, int64_t to) {
  std::vector<std::string> list;
  for (const int32_t port : fabric.route(from, to))
    list.push_back(fabric.port_name[static_cast<size_t>(port)]);
  return list;
}
using Names = std::vector<std::string>;

const NodeShape kNode{.num_members = 2,
                      .num_nics = 2,
                      .inner_bytes_per_second = 100,
                      .nic_bytes_per_second = 10,
                      .latency_seconds = 1};

Fabric small_dragonfly(bool adaptive) {
  return dragonfly({.node = kNode,
                    .nodes_per_switch = 2,
                    .switches_per_group = 2,
                    .num_groups = 3,
                    .local_bytes_per_second = 20,
                    .global_bytes_per_second = 15,
                    .hop_seconds = 2,
                    .global_seconds = 5,
                    .adaptive = adaptive});
}

std::vector<Fabric> all_shapes() {
  return {small_dragonfly(false),
          small_dragonfly(true),
          fat_tree({.node = kNode, .nodes_per_leaf = 2, .num_leaves = 3, .oversubscription = 2}),
          rail_optimised({.node = kNode, .nodes_per_pod = 3, .num_pods = 2, .hop_seconds = 2}),
          two_data_centres({.node = kNode, .nodes_per_centre = 3, .line_bytes_per_second = 7}),
          example::nodes(1, 4, 2),
          example::nodes(5, 1, 1)};
}

TEST_CASE("a Dragonfly with minimal routing: a link for each pair of switches and of groups") {
  const Fabric fabric = small_dragonfly(false);
  CHECK(fabric.num_members() == 24);
  CHECK(names(fabric, 0, 1) == Names{"member 0, out", "member 1, in"});
  CHECK(names(fabric, 0, 3) == Names{"NIC 0 of node 0, out", "NIC 1 of node 1, in"});
  CHECK(names(fabric, 0, 5) ==
        Names{"NIC 0 of node 0, out", "switch 0 to 1", "NIC 1 of node 2, in"});
  CHECK(names(fabric, 0, 23) ==
        Names{"NIC 0 of node 0, out", "group 0 to 2", "NIC 1 of node 11, in"});
  CHECK(fabric.latency_seconds(0, 1) == 1);
  CHECK(fabric.latency_seconds(0, 2) == 2);
  CHECK(fabric.latency_seconds(0, 4) == 4);
  CHECK(fabric.latency_seconds(0, 8) == 13);
}

TEST_CASE("a Dragonfly with adaptive routing: the links of a group are one port") {
  const Fabric fabric = small_dragonfly(true);
  CHECK(names(fabric, 0, 23) == Names{"NIC 0 of node 0, out", "switch 0, out", "group 0, out",
                                      "group 2, in", "switch 5, in", "NIC 1 of node 11, in"});
  const std::vector<int32_t> route = fabric.route(0, 23);
  CHECK(fabric.bytes_per_second[static_cast<size_t>(route[2])] == 2 * 15);
}

TEST_CASE("a fat tree's uplinks carry what the oversubscription leaves") {
  const Fabric fabric =
      fat_tree({.node = kNode, .nodes_per_leaf = 3, .num_leaves = 2, .oversubscription = 4});
  const std::vector<int32_t> route = fabric.route(0, 11);
  REQUIRE(route.size() == 4);
  CHECK(fabric.bytes_per_second[static_cast<size_t>(route[1])] == 3 * 2 * 10 / 4.0);
}

TEST_CASE("on rails equal NICs meet at their switch, others cross the spine") {
  const Fabric fabric =
      rail_optimised({.node = kNode, .nodes_per_pod = 2, .num_pods = 2, .oversubscription = 2});
  CHECK(names(fabric, 0, 2) == Names{"NIC 0 of node 0, out", "NIC 0 of node 1, in"});
  CHECK(names(fabric, 0, 3) == Names{"NIC 0 of node 0, out", "rail switch 0, out",
                                     "rail switch 1, in", "NIC 1 of node 1, in"});
  CHECK(names(fabric, 0, 4) == Names{"NIC 0 of node 0, out", "rail switch 0, out",
                                     "rail switch 2, in", "NIC 0 of node 2, in"});
}

TEST_CASE("between two data centres everything crosses the one line") {
  const Fabric fabric = two_data_centres({.node = kNode,
                                          .nodes_per_centre = 2,
                                          .hop_seconds = 1,
                                          .line_bytes_per_second = 7,
                                          .line_seconds = 90});
  CHECK(names(fabric, 1, 7) == Names{"NIC 1 of node 0, out", "data centre 0, out",
                                     "data centre 1, in", "NIC 1 of node 3, in"});
  CHECK(fabric.latency_seconds(1, 7) == 96);
}

TEST_CASE("the simulator's routes are those of the description, on every shape") {
  for (const Fabric& fabric : all_shapes()) {
    REQUIRE(problems_of(fabric) == std::vector<std::string>{});
    const FlowRoutes routes(fabric);
    for (int64_t from = 0; from < fabric.num_members(); ++from)
      for (int64_t to = 0; to < fabric.num_members(); ++to) {
        if (from == to) continue;
        const size_t level =
            routes.common_level(static_cast<uint64_t>(from), static_cast<uint64_t>(to));
        CHECK(level == fabric.common_level(from, to));
        std::vector<int32_t> ports;
        for (uint32_t at = routes.first(static_cast<uint64_t>(from), level); at != FlowRoutes::kEnd;
             at = routes.next(at, static_cast<uint64_t>(to)))
          ports.push_back(routes.port(at, static_cast<uint64_t>(to)));
        REQUIRE(ports == fabric.route(from, to));
      }
  }
}

TEST_CASE("a topology holds the levels that nest, and the NICs") {
  const collective::Topology tree = topology_of(small_dragonfly(false));
  REQUIRE(tree.unit.size() == 3);  // node, switch, group; the system tells nobody apart
  CHECK(tree.unit[2] == std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1,
                                             1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2});
  const collective::Topology rails =
      topology_of(rail_optimised({.node = kNode, .nodes_per_pod = 2, .num_pods = 2}));
  CHECK(rails.unit.size() == 1);
  CHECK(rails.nic == std::vector<int32_t>{0, 1, 0, 1, 0, 1, 0, 1});
}

TEST_CASE("a description that cannot be is refused, all problems at once") {
  Fabric fabric = example::nodes(2, 2, 1);
  fabric.bytes_per_second[0] = 0;
  fabric.levels[1].latency_seconds = -1;
  fabric.costs.send_seconds = NAN;
  fabric.nic_in[1] = 99;
  CHECK(problems_of(fabric).size() == 4);
  CHECK_THROWS_AS(example::simulate(example::uniform(4, 1), fabric), InvalidInput);
  CHECK_THROWS_AS(fat_tree({.node = {.num_members = 3, .num_nics = 2}}), InvalidInput);
  CHECK_THROWS_AS(fat_tree({.node = kNode, .nodes_per_leaf = 0}), InvalidInput);
}

}  // namespace
}  // namespace piper::sim
