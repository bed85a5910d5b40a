#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/cluster.h>
#include <piper/cluster/facts.h>

using namespace piper;
using namespace piper::cluster;

namespace {

// 7 devices a node, 3 nodes a rack, 2 racks: 42 devices.
Cluster odd() {
  Cluster cluster;
  cluster.levels = {{.name = "node", .num_members = 7},
                    {.name = "rack", .num_members = 3},
                    {.name = "system", .num_members = 2}};
  return cluster;
}

}  // namespace

TEST_CASE("devices of a level are the product of the members up to it") {
  const Cluster cluster = odd();
  CHECK(cluster.devices_of_level(0) == 7);
  CHECK(cluster.devices_of_level(1) == 21);
  CHECK(cluster.devices_of_level(2) == 42);
  CHECK(cluster.num_devices() == 42);
  CHECK(cluster.devices_per_node() == 7);
  CHECK_THROWS_AS(cluster.devices_of_level(3), InternalError);
}

TEST_CASE("the common level of two devices is the innermost unit that holds both") {
  const Cluster cluster = odd();
  CHECK(cluster.common_level(0, 0) == 0);
  CHECK(cluster.common_level(0, 6) == 0);
  CHECK(cluster.common_level(6, 7) == 1);  // neighbours in number, not in place
  CHECK(cluster.common_level(0, 20) == 1);
  CHECK(cluster.common_level(20, 21) == 2);
  CHECK(cluster.common_level(41, 0) == 2);
  CHECK_THROWS_AS(cluster.common_level(0, 42), InternalError);
  CHECK_THROWS_AS(cluster.common_level(-1, 0), InternalError);
}

TEST_CASE("the common level agrees with a count of shared units for every pair") {
  const Cluster cluster = odd();
  for (int64_t a = 0; a < 42; ++a)
    for (int64_t b = 0; b < 42; ++b) {
      const size_t expected = a / 7 == b / 7 ? 0 : a / 21 == b / 21 ? 1 : 2;
      CHECK(cluster.common_level(a, b) == expected);
    }
}

TEST_CASE("a message costs its latency and its bytes") {
  const AlphaBeta link{.latency_seconds = 2, .bytes_per_second = 4};
  CHECK(link.seconds(0) == 2);
  CHECK(link.seconds(12) == 5);
}

TEST_CASE("a source speaks for its fact and for everything below, the longest path first") {
  Cluster cluster = odd();
  cluster.sources = {{"levels", "a"}, {"levels.rack", "assumption: b"}, {"memory_bytes", "c"}};
  CHECK(source_of(cluster, "levels.node.num_members")->source == "a");
  CHECK(source_of(cluster, "levels.rack.num_members")->source == "assumption: b");
  CHECK(is_assumption(*source_of(cluster, "levels.rack.num_members")));
  CHECK(source_of(cluster, "memory_bytes_per_second") == nullptr);  // not below memory_bytes
  const std::vector<std::string> problems = problems_of_sources(cluster);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "'memory_bytes_per_second' has no source");
}

TEST_CASE("a source that speaks for nothing is named") {
  Cluster cluster = odd();
  cluster.sources = {{"levels", "a"},
                     {"memory_bytes", "c"},
                     {"memory_bytes_per_second", "d"},
                     {"compute.bf16", "e"}};
  const std::vector<std::string> problems = problems_of_sources(cluster);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "'sources.compute.bf16' speaks for no stated fact");
}
