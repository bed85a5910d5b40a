#include <doctest/doctest.h>
#include <piper/cost/host_link.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/measure_compute.h>

#include <string>

namespace piper::profile {
namespace {

// As if every point had been measured, at 1 GB/s or GFLOP/s but for copies to and from the host.
cluster::Cluster filled(strategy::Precision precision, const BenchDevice& device) {
  std::vector<cluster::Curve> measured;
  for (const BenchCurve& curve : price_curves(precision, device)) {
    const double rate = curve.name.starts_with("copy_to_device")     ? 30e9
                        : curve.name.starts_with("copy_from_device") ? 20e9
                                                                     : 1e9;
    cluster::Curve& of = measured.emplace_back();
    of.name = curve.name;
    of.unit = curve.unit;
    of.axes = curve.axes;
    for (const BenchPoint& point : curve.points)
      of.points.push_back(
          {.at = point.at, .amount = point.amount, .timing = {.seconds = point.amount / rate}});
  }
  cluster::Cluster cluster;
  fill_prices(measured, precision, true, cluster);
  return cluster;
}

}  // namespace

TEST_CASE("a GPU's link to its host is the slower of both ways; a processor has none") {
  for (const auto precision : {strategy::Precision::kFp32, strategy::Precision::kBf16}) {
    const cluster::Cluster gpu = filled(precision, {at::Device(at::kCUDA, 0)});
    CHECK(cost::host_bytes_per_second(gpu) == doctest::Approx(20e9));
    CHECK(gpu.numbers.at("optimizer_bytes_per_second") == doctest::Approx(1e9));
    CHECK(!filled(precision, {}).numbers.contains(cost::kHostRateName));
  }
}

TEST_CASE("AdamW is timed as it is trained with: in bf16 masters are rounded into weights") {
  CHECK(adamw_bytes(at::kFloat) == 28);
  CHECK(adamw_bytes(at::kBFloat16) == 30);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    CHECK_NOTHROW(adamw(1000, {.device = {}, .dtype = dtype})()());
}

}  // namespace piper::profile
