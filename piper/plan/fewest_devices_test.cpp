#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/example_world.h>
#include <piper/plan/fewest_devices.h>

namespace piper::plan {
namespace {

struct World : ExampleWorld {
  explicit World(const char* name) : ExampleWorld(name) { cluster = extended(cluster); }
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
      const World world(name);
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
  const World world("mixtral-8x22b");
  const auto request_of = [&](int64_t n) {
    Request request = world.request(n, 4 * n);
    request.fixed.zero = 1;
    request.fixed.offload = strategy::Offload::kNone;
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

TEST_CASE("activations leave only where there is a pipeline") {
  const World world("mixtral-8x7b");
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
