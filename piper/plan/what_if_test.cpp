#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/what_if.h>
#include <testing/plan/example_world.h>

#include <string>

namespace piper::plan {
namespace {

std::string refusal(const std::string& change) {
  try {
    changed(cluster::load_cluster("dgx-h100"), change);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a change changes what it names and nothing else") {
  const cluster::Cluster base = cluster::load_cluster("dgx-h100");
  CHECK(changed(base, "memory=x0.5").memory_bytes == base.memory_bytes / 2);
  CHECK(changed(base, "memory=96GB").memory_bytes == 96'000'000'000);
  CHECK(changed(base, "memory=1.5GiB").memory_bytes == 3 * (int64_t{1} << 29));
  const cluster::Cluster nics = changed(base, "nics=x2");
  bool any = false;
  for (size_t i = 0; i < base.levels.size(); ++i) {
    const int64_t before = base.levels[i].num_nics;
    CHECK(nics.levels[i].num_nics == 2 * before);
    CHECK(nics.levels[i].link.bytes_per_second ==
          doctest::Approx((before > 0 ? 2 : 1) * base.levels[i].link.bytes_per_second));
    any |= before > 0;
  }
  CHECK(any);
  const cluster::Cluster level = changed(base, "bandwidth.node=x4");
  CHECK(level.levels[0].link.bytes_per_second ==
        doctest::Approx(4 * base.levels[0].link.bytes_per_second));
  CHECK(level.levels[1].link.bytes_per_second == base.levels[1].link.bytes_per_second);
  CHECK(changed(base, "latency=x0.5").levels[1].link.latency_seconds ==
        doctest::Approx(base.levels[1].link.latency_seconds / 2));
  CHECK(changed(base, "compute=x2").compute.at("bf16").peak_flops_per_second ==
        doctest::Approx(2 * base.compute.at("bf16").peak_flops_per_second));
  const cluster::Cluster device = changed(base, "device=dgx-a100");
  CHECK(device.memory_bytes == cluster::load_cluster("dgx-a100").memory_bytes);
  CHECK(device.levels[0].link.bytes_per_second == base.levels[0].link.bytes_per_second);
  CHECK(device.name == "dgx-h100 with device=dgx-a100");
}

TEST_CASE("what cannot be is refused in a line that says what can") {
  for (const char* bad : {"memory", "memory=", "memory=x", "memory=x0", "memory=x-1", "memory=xnan",
                          "memory=96", "memory=96TB", "nics=x0.3", "nics=2", "bandwidth=x2y",
                          "compute.bf16=x2", "=x2", "", "memory=x1e300"}) {
    CAPTURE(bad);
    CHECK(refusal(bad).find("--what-if is '" + std::string(bad) + "'; allowed: ") == 0);
  }
  CHECK(refusal("bandwith=x2").find("bandwidth") != std::string::npos);
  CHECK(refusal("bandwidth.nodes=x2").find("node") != std::string::npos);
  CHECK(refusal("device=dgx-h1000").find("dgx-h100") != std::string::npos);
}

TEST_CASE("a better machine never plans a slower step") {
  const ExampleWorld world("qwen3-30b-a3b");
  const auto seconds_of_best = [&](const cluster::Cluster& cluster) {
    Request request = world.request(128, 1024);
    request.cluster = &cluster;
    request.fixed.runnable = true;
    request.memory_limit_bytes = 0.9 * static_cast<double>(cluster.memory_bytes);
    return search(request).ranked.front().estimate.seconds;
  };
  const double here = seconds_of_best(world.cluster);
  for (const char* change : {"bandwidth=x2", "nics=x2", "latency=x0.1", "compute=x1.5", "memory=x2",
                             "memory_bandwidth=x2", "bandwidth.node=x1.1"}) {
    CAPTURE(change);
    CHECK(seconds_of_best(changed(world.cluster, change)) <= here * (1 + 1e-12));
  }
}

}  // namespace piper::plan
