#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_devices.h>
#include <testing/plan/example_world.h>

namespace piper::plan {
namespace {

struct FewestWorld : ExampleWorld {
  explicit FewestWorld(const char* name) : ExampleWorld(name) { cluster = extended(cluster); }
  Request request(int64_t devices, int64_t batch) const {
    Request r = ExampleWorld::request(devices, batch);
    r.num_kept = 16;
    return r;
  }
};

}  // namespace

TEST_CASE("nothing needs less memory than the least: every strategy of the space is asked") {
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"})
    for (const int64_t devices : {2, 8}) {
      CAPTURE(name);
      CAPTURE(devices);
      const FewestWorld world(name);
      Request request = world.request(devices, 2 * devices);
      const double least = least_memory(request).estimate.peak_bytes;
      request.memory_limit_bytes = 0;
      request.prunes = false;
      double all = 1e30;
      for (const FamilyBest& family : search(request).families)
        if (family.smallest) all = std::min(all, family.smallest->estimate.peak_bytes);
      CHECK(least == all);
    }
}

TEST_CASE("the fewest devices are those that trying one count after the other finds") {
  const FewestWorld world("mixtral-8x22b");
  const auto request_of = [&](int64_t n) {
    Request request = world.request(n, 4 * n);
    request.fixed.zero = 1;
    request.fixed.offload = strategy::Offload::kNone;
    request.fixed.micro_batch_sequences = 1;
    return request;
  };
  const FewestDevices found = fewest_devices(world.cluster, request_of);
  REQUIRE(found.num_devices);
  CHECK(found.num_not_looked_at == 0);
  for (const DeviceCount& count : found.counts) {
    CAPTURE(count.num_devices);
    const bool fits =
        count.smallest.estimate.peak_bytes <= request_of(count.num_devices).memory_limit_bytes;
    CHECK(count.best.has_value() == fits);
    CHECK(fits == (count.num_devices >= *found.num_devices));
  }
  const int64_t unit = *found.num_devices > 8 ? 8 : 1;
  if (*found.num_devices > unit)
    CHECK(search(request_of(*found.num_devices - unit)).ranked.empty());
  CHECK_FALSE(search(request_of(*found.num_devices)).ranked.empty());
}

TEST_CASE("a trainer that keeps less with the host is asked for pipelines, too") {
  FewestWorld world("mixtral-8x7b");
  for (const char* trainer : {"megatron", "megatron-2021"}) {
    CAPTURE(trainer);
    world.trainer = cost::load_trainer(trainer);
    Request request = world.request(24, 48);
    const double least = least_memory(request).estimate.peak_bytes;
    request.memory_limit_bytes = 0;
    request.prunes = false;
    double all = 1e30;
    for (const FamilyBest& family : search(request).families)
      if (family.smallest) all = std::min(all, family.smallest->estimate.peak_bytes);
    CHECK(least == all);
  }
}

TEST_CASE("a number of devices that no step of the walk names is found: 61 stages of 8 are 488") {
  const FewestWorld world("deepseek-v3");
  const auto request_of = [&](int64_t n) {
    Request request = world.request(n, n);
    request.fixed.pp = 61;
    request.fixed.tp = request.fixed.cp = request.fixed.etp = 1;
    request.fixed.ep = request.fixed.dp = 8;
    return request;
  };
  const FewestDevices found = fewest_devices(world.cluster, request_of);
  REQUIRE(found.num_devices);
  CHECK(*found.num_devices == 488);
}

TEST_CASE("fewer devices fit where more do not, when the experts divide by the fewer alone") {
  FewestWorld world("deepseek-v2");  // 160 experts
  const auto request_of = [&](int64_t n) {
    Request request = world.request(n, n);
    request.fixed.offload = strategy::Offload::kNone;
    request.fixed.zero = 0;
    request.fixed.pp = request.fixed.tp = request.fixed.cp = request.fixed.etp = 1;
    request.memory_limit_bytes = 315e9;
    return request;
  };
  const FewestDevices found = fewest_devices(world.cluster, request_of);
  REQUIRE(found.num_devices);
  CHECK(*found.num_devices == 80);  // 64 and 96 divide into 32 groups of experts alone
  CHECK(found.num_not_looked_at == 0);
}

TEST_CASE("a refusal names what the user fixed and how many numbers were tried, no offload") {
  FewestWorld world("deepseek-v3");
  const auto request_of = [&](int64_t n) {
    Request request = world.request(n, n);
    request.fixed.pp = 62;
    return request;
  };
  CHECK_THROWS_WITH_AS(fewest_devices(world.cluster, request_of),
                       doctest::Contains("numbers of devices were tried, 1 to "), InvalidInput);
  try {
    fewest_devices(world.cluster, request_of);
  } catch (const InvalidInput& error) {
    const std::string said = error.what();
    CHECK(said.starts_with("--pp 62"));
    CHECK(said.find("offload") == std::string::npos);
  }
}

TEST_CASE("activations leave only where there is a pipeline") {
  const FewestWorld world("mixtral-8x7b");
  Request request = world.request(16, 64);
  request.fixed.offload = strategy::Offload::kActivations;
  const Plan plan = search(request);
  REQUIRE(!plan.ranked.empty());
  for (const Candidate& c : plan.ranked) CHECK(c.strategy.mesh.pp > 1);
  request.fixed.pp = 1;
  CHECK_THROWS_WITH_AS(search(request), doctest::Contains("--pp 1 with --offload activations"),
                       InvalidInput);
}

}  // namespace piper::plan
