#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/plan/fewest_devices.h>

namespace piper::plan {
namespace {

Request request(const char* model, const char* cluster) {
  return {.model = model::load_model(model), .cluster = cluster::load_cluster(cluster)};
}

// The first whole number of units that a plan fits on, one after the other.
int64_t by_trying(Request r, int64_t unit, int64_t most) {
  r.num_simulated = 0;
  for (r.num_devices = unit; r.num_devices <= most; r.num_devices += unit)
    if (!make_plan(r).strategies.empty()) return r.num_devices;
  return 0;
}

}  // namespace

TEST_CASE("the fewest devices are those that trying one count after the other finds") {
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b", "m10b-e16"}) {
    CAPTURE(model);
    const Request r = request(model, "dgx-h100");
    const FewestDevices found = fewest_devices(r);
    REQUIRE(found.num_devices);
    const int64_t unit = *found.num_devices > 8 ? 8 : 1;
    if (unit == 1)
      CHECK(*found.num_devices == by_trying(r, 1, 8));
    else
      CHECK(*found.num_devices == by_trying(r, 8, 512));
    int64_t before = 0;
    for (const DeviceCount& count : found.counts) {
      CHECK(count.num_devices > before);
      before = count.num_devices;
      REQUIRE(count.smallest);
      // What fits is what needs no more than is usable, and the least memory says so.
      CHECK(count.best.has_value() ==
            (count.smallest->prediction.peak_bytes <= found.memory_limit_bytes));
    }
  }
}

TEST_CASE(
    "a model too large for the cluster as described is given a larger one, and that is said") {
  const FewestDevices found = fewest_devices(request("mixtral-8x22b", "hybridep-m"));
  CHECK(found.beyond_cluster);
  REQUIRE(found.num_devices);
  CHECK(*found.num_devices > cluster::load_cluster("hybridep-m").num_devices());
  // A machine of one node has no larger one.
  CHECK_FALSE(fewest_devices(request("deepseek-v3", "rtx4090x8")).num_devices);
}

}  // namespace piper::plan
