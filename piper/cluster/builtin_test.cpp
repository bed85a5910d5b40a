#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>
#include <piper/cluster/facts.h>

#include <algorithm>
#include <fstream>

using namespace piper;
using namespace piper::cluster;

namespace {

std::string message_of(const std::string& name) {
  try {
    load_cluster(name);
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every built-in is sound, carries its own name and a source for every fact") {
  REQUIRE(builtin_clusters().size() >= 11);
  for (const std::string& name : builtin_clusters()) {
    CAPTURE(name);
    const Cluster cluster = load_cluster(name);
    CHECK(cluster.name == name);
    CHECK_FALSE(cluster.description.empty());
    for (const std::string& problem : problems_of_sources(cluster)) FAIL_CHECK(problem);
    CHECK(to_json(parse_cluster(to_json(cluster), name)) == to_json(cluster));
  }
}

TEST_CASE("no built-in claims to compute or to send faster than its peak") {
  for (const std::string& name : builtin_clusters()) {
    CAPTURE(name);
    const Cluster cluster = load_cluster(name);
    for (const auto& [precision, compute] : cluster.compute) {
      CAPTURE(precision);
      for (const Grid* grid : {&compute.gemm, &compute.attention, &compute.attention_backward})
        for (const double rate : grid->rate) CHECK(rate <= compute.peak_flops_per_second);
    }
    for (size_t i = 1; i < cluster.levels.size(); ++i) {
      const Level& level = cluster.levels[i];
      CHECK(level.link.bytes_per_second <= cluster.levels[i - 1].link.bytes_per_second);
      if (level.nic_bytes_per_second > 0)
        CHECK(level.link.bytes_per_second * static_cast<double>(cluster.devices_of_level(i - 1)) <=
              static_cast<double>(level.num_nics) * level.nic_bytes_per_second * 1.000001);
    }
  }
}

TEST_CASE("the machines that are asked for are there, whatever the case of their name") {
  for (const char* name :
       {"frontier", "dgx-a100", "dgx-h100", "dgx-h200", "b200", "gb200", "h800", "a800",
        "rtx4090x8", "rtx2080ti", "two-data-centres", "Frontier", "DGX-H100"})
    CHECK_NOTHROW(load_cluster(name));
  for (const char* name : {"frontier", "dgx-a100", "dgx-h100", "dgx-h200", "b200", "gb200", "h800",
                           "a800", "two-data-centres"})
    CHECK(load_cluster(name).num_devices() >= 2048);
}

TEST_CASE("an unknown name is answered with what is allowed and what was meant") {
  const std::string message = message_of("frontire");
  CHECK(message.find("cluster 'frontire' is not known; allowed: a file or one of ") == 0);
  CHECK(message.find("did you mean 'frontier'?") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  CHECK_THROWS_AS(load_cluster("nowhere/here.json"), IoError);
  CHECK_THROWS_AS(load_cluster("."), InvalidInput);
}

TEST_CASE("a description is loaded from a file") {
  const auto path = std::filesystem::temp_directory_path() / "piper_builtin_test.json";
  Cluster cluster = load_cluster("frontier");
  cluster.name = "mine";
  std::ofstream(path) << to_text(to_json(cluster));
  CHECK(load_cluster(path.string()).name == "mine");
  std::filesystem::remove(path);
}

TEST_CASE("Frontier: 77 cabinets of 32 switch groups of 4 nodes of 8 GCDs with 4 NICs") {
  const Cluster frontier = load_cluster("frontier");
  REQUIRE(frontier.levels.size() == 4);
  CHECK(frontier.devices_per_node() == 8);
  CHECK(frontier.devices_of_level(1) == 32);
  CHECK(frontier.devices_of_level(2) == 1024);
  CHECK(frontier.num_devices() == 9856 * 8);  // the user guide's 9,856 nodes
  CHECK(frontier.levels[1].num_nics == 4);
  CHECK(frontier.levels[1].nic_bytes_per_second == 25e9);
  CHECK(frontier.compute.at("bf16").peak_flops_per_second == 191.5e12);
  CHECK(frontier.memory_bytes == 64'000'000'000);
}

TEST_CASE("the measured curves carry the figures they were thinned from") {
  // 4096 x 4096 x 4096 in the tables of the source: 789, 267 TFLOP/s.
  CHECK(load_cluster("dgx-h100").compute.at("bf16").gemm.at({4096, 4096, 4096}) ==
        doctest::Approx(789e12).epsilon(0.002));
  CHECK(load_cluster("dgx-a100").compute.at("bf16").gemm.at({4096, 4096, 4096}) ==
        doctest::Approx(267e12).epsilon(0.002));
  // A skinny expert GEMM is far from its peak.
  CHECK(load_cluster("dgx-h100").compute.at("bf16").gemm.at({64, 512, 2048}) < 0.05 * 989e12);
}
