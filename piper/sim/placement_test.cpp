#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <set>

namespace piper::sim {
namespace {

const cluster::Cluster& frontier() {
  static const cluster::Cluster cluster = cluster::load_cluster("frontier");
  return cluster;
}

int64_t num_units(const std::vector<int32_t>& units) { return std::ranges::max(units) + 1; }

TEST_CASE("packed nodes fill switch groups and cabinets in order") {
  const collective::Topology topology = topology_of(frontier(), packed(frontier(), 8));
  REQUIRE(topology.unit.size() == 2);  // nodes and switch groups: one cabinet tells nobody apart
  CHECK(num_units(topology.unit[0]) == 8);
  CHECK(num_units(topology.unit[1]) == 2);
  CHECK(problems(topology).empty());
  // Eight devices on four NICs: neighbours share.
  CHECK(std::vector<int32_t>(topology.nic.begin(), topology.nic.begin() + 8) ==
        std::vector<int32_t>{0, 0, 1, 1, 2, 2, 3, 3});
}

TEST_CASE("scattered nodes share neither switch groups nor, beyond their number, cabinets") {
  const Placement placement = scattered(frontier(), 12, 2, 4);
  const collective::Topology topology = topology_of(frontier(), placement);
  // Three nodes in each of four cabinets, each in a switch group of its own: the level of groups
  // says no more than that of nodes.
  REQUIRE(topology.unit.size() == 2);
  CHECK(num_units(topology.unit[0]) == 12);
  CHECK(num_units(topology.unit[1]) == 4);
  CHECK(std::ranges::is_sorted(placement.device));
  CHECK(problems(topology).empty());
}

TEST_CASE("drawn nodes are different ones, and the same for the same seed") {
  const Placement a = drawn(frontier(), 100, 5), b = drawn(frontier(), 100, 5);
  CHECK(a.device == b.device);
  CHECK(a.device != drawn(frontier(), 100, 6).device);
  CHECK(std::set<int64_t>(a.device.begin(), a.device.end()).size() == 800);
}

TEST_CASE("more nodes than the machine has are refused") {
  CHECK_THROWS_WITH_AS(packed(frontier(), 9857), doctest::Contains("allowed: 1 to 9856"),
                       InvalidInput);
  CHECK_THROWS_AS(packed(frontier(), 1, 9), InvalidInput);
  CHECK_THROWS_AS(scattered(frontier(), 129, 2, 1), InvalidInput);
  CHECK_THROWS_AS(scattered(frontier(), 8, 2, 78), InvalidInput);
}

TEST_CASE(
    "Frontier's ports: 50 GB/s inside, NICs of 25 GB/s for two, cabinets narrower than their "
    "NICs") {
  const Fabric one_cabinet = fabric_of(frontier(), packed(frontier(), 128));
  REQUIRE(problems_of(one_cabinet).empty());
  const std::vector<int32_t> route = one_cabinet.route(0, 8 * 127);
  REQUIRE(route.size() == 2);  // nothing waits between the NICs of a cabinet
  CHECK(one_cabinet.bytes_per_second[static_cast<size_t>(route[0])] == 25e9);
  CHECK(one_cabinet.bytes_per_second[static_cast<size_t>(one_cabinet.member_out[0])] == 50e9);
  CHECK(one_cabinet.nic_out[0] == one_cabinet.nic_out[1]);
  CHECK(one_cabinet.nic_out[1] != one_cabinet.nic_out[2]);
  // Start-up and latency together are what the level states.
  CHECK(one_cabinet.costs.send_seconds + one_cabinet.latency_seconds(0, 8 * 127) ==
        doctest::Approx(3.5e-5));

  const Fabric two = fabric_of(frontier(), packed(frontier(), 256));
  const std::vector<int32_t> far = two.route(0, 8 * 255);
  REQUIRE(far.size() == 4);
  CHECK(two.port_name[static_cast<size_t>(far[1])] == "cabinet 0, out");
  CHECK(two.bytes_per_second[static_cast<size_t>(far[1])] == doctest::Approx(7.13e9 * 1024));
  // A few nodes of a cabinet cannot fill what leaves it.
  CHECK(fabric_of(frontier(), scattered(frontier(), 8, 2, 2)).route(0, 8 * 7).size() == 2);
}

TEST_CASE("every built-in cluster gives a sound fabric and topology") {
  for (const std::string& name : cluster::builtin_clusters()) {
    CAPTURE(name);
    const cluster::Cluster cluster = cluster::load_cluster(name);
    const int64_t num_nodes = cluster.num_devices() / cluster.devices_per_node();
    const Placement placement = packed(cluster, std::min<int64_t>(num_nodes, 40));
    CHECK(problems_of(fabric_of(cluster, placement)) == std::vector<std::string>{});
    CHECK(problems(topology_of(cluster, placement)) == std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace piper::sim
