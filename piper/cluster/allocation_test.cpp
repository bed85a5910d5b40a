#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/allocation.h>

#include <set>

namespace piper::cluster {
namespace {

using Names = std::vector<std::string>;

// Nodes of 4 with 2 NICs of 10, switches of 2 nodes, racks of 3 switches, 2 racks.
Cluster machine_of_nodes() {
  Cluster c;
  c.name = "machine";
  c.levels = {{.name = "node", .num_members = 4, .link = {1e-6, 100}},
              {.name = "switch",
               .num_members = 2,
               .link = {2e-6, 50},
               .num_nics = 2,
               .nic_bytes_per_second = 10},
              {.name = "rack", .num_members = 3, .link = {3e-6, 4}},
              {.name = "system", .num_members = 2, .link = {4e-6, 2}}};
  return c;
}

GroupsOfNodes groups(const char* json) { return parse_node_groups(parse_json(json, "f"), "f"); }

const GroupsOfNodes kGroups =
    groups(R"({"a,c,d": ["s1", "r1"], "b": ["s2", "r1"], "e": ["s9", "r2"]})");

Allocation allocated(const Names& nodes, const Names& levels = {}) {
  return allocate(machine_of_nodes(), nodes, kGroups, std::vector<int64_t>(nodes.size(), 4),
                  levels);
}

size_t common(const Allocation& a, size_t x, size_t y) {
  return a.machine.common_level(a.nodes[x].first_device, a.nodes[y].first_device);
}

}  // namespace

TEST_CASE("nodes of an allocation share exactly the levels that their groups say") {
  const Allocation a = allocated({"a", "b", "c", "d", "e"});
  CHECK(a.machine.levels.size() == 4);
  CHECK(common(a, 0, 2) == 1);  // switch s1
  CHECK(common(a, 0, 1) == 2);  // rack r1
  CHECK(common(a, 0, 4) == 3);
  CHECK(a.num_slots() == 20);
  std::set<int64_t> devices;
  for (const AllocatedNode& node : a.nodes) {
    CHECK(node.first_device % 4 == 0);
    devices.insert(node.first_device);
  }
  CHECK(devices.size() == 5);
  // Three nodes on a switch of two: it has grown, nothing else has shrunk.
  CHECK(a.machine.levels[1].num_members == 3);
  CHECK(a.machine.levels[2].num_members == 3);
  CHECK(a.machine.levels[1].num_nics == 2);
  CHECK(a.machine.levels[2].link.bytes_per_second == 4);
}

TEST_CASE("groups that are named levels pass over those between, with the slowest link of them") {
  const GroupsOfNodes racks = groups(R"({"a,b": ["r1"], "c": ["r2"]})");
  const Names nodes{"a", "b", "c"};
  const std::vector<int64_t> slots(3, 4);
  const Allocation a = allocate(machine_of_nodes(), nodes, racks, slots, Names{"rack"});
  CHECK(a.machine.levels.size() == 3);
  CHECK(a.machine.levels[1].name == "rack");
  CHECK(a.machine.levels[1].num_members == 6);
  CHECK(a.machine.levels[1].link.bytes_per_second ==
        4);  // of 4 (rack) and 5 (two NICs of 10 for four)
  CHECK(a.machine.levels[2].name == "system");
  CHECK(common(a, 0, 1) == 1);
  CHECK(common(a, 0, 2) == 2);
  CHECK_THROWS_AS(allocate(machine_of_nodes(), nodes, racks, slots, Names{"rak"}), InvalidInput);
  CHECK_THROWS_AS(allocate(machine_of_nodes(), nodes, racks, slots, Names{"node"}), InvalidInput);
  CHECK_THROWS_AS(allocated({"a", "b"}, {"rack", "switch"}), InvalidInput);
  CHECK_THROWS_AS(allocated({"a", "b"}, {"rack"}), InvalidInput);
}

TEST_CASE("groups beyond the outermost level take its link again") {
  const GroupsOfNodes deep =
      groups(R"({"a": ["1", "2", "3", "4", "5"], "b": ["x", "y", "z", "u", "5"]})");
  const Allocation a =
      allocate(machine_of_nodes(), Names{"a", "b"}, deep, std::vector<int64_t>{4, 4});
  CHECK(common(a, 0, 1) == 5);
  CHECK(a.machine.levels[5].link.bytes_per_second == 2);
}

TEST_CASE("an allocation that cannot be is refused, all problems at once") {
  CHECK_THROWS_AS(allocated({"a", "a"}), InvalidInput);
  CHECK_THROWS_AS(allocated({"a", "z"}), InvalidInput);
  CHECK_THROWS_AS(allocated({}), InvalidInput);
  CHECK_THROWS_AS(allocate(machine_of_nodes(), Names{"a"}, kGroups, std::vector<int64_t>{5}),
                  InvalidInput);
  CHECK_THROWS_AS(allocate(machine_of_nodes(), Names{"a"}, kGroups, std::vector<int64_t>{0}),
                  InvalidInput);
  const std::vector<int64_t> two{4, 4};
  const GroupsOfNodes torn = groups(R"({"a": ["s", "r1"], "b": ["s", "r2"]})");
  CHECK_THROWS_AS(allocate(machine_of_nodes(), Names{"a", "b"}, torn, two), InvalidInput);
  const GroupsOfNodes uneven = groups(R"({"a": ["s", "r1"], "b": ["s"]})");
  CHECK_THROWS_AS(allocate(machine_of_nodes(), Names{"a", "b"}, uneven, two), InvalidInput);
  Cluster one = machine_of_nodes();
  one.levels.resize(1);
  CHECK_THROWS_AS(allocate(one, Names{"a", "b"}, kGroups, two), InvalidInput);
  GroupsOfNodes alone;
  alone["a"];
  CHECK(allocate(one, Names{"a"}, alone, std::vector<int64_t>{4}).machine.levels.size() == 1);
  try {
    allocate(machine_of_nodes(), Names{"z", "a", "y"}, kGroups, std::vector<int64_t>{4, 9, 4});
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 3);
  }
}

}  // namespace piper::cluster
