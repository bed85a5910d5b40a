#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/segment_time.h>
#include <piper/strategy/state_bytes.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

namespace piper::cost {
namespace {

Work gemm(double m, double n, double k) {
  return {.kind = WorkKind::kGemm, .amount = 2 * m * n * k, .m = m, .n = n, .k = k};
}

}  // namespace

TEST_CASE("a GEMM with few rows is bound by its weights, a large one by its FLOPs") {
  const cluster::Cluster cluster = example::nodes();
  const cluster::Compute& compute = compute_of(cluster, strategy::Precision::kFp32);
  // One row of 1000 x 1000: 2e6 FLOPs take 2 us, 4 MB + 8 kB of fp32 take 40.08 us.
  CHECK(work_seconds(gemm(1, 1000, 1000), cluster, compute, 4) == near(40.08e-6));
  // 1000 rows: 2e9 FLOPs take 2 ms, 12 MB take 0.12 ms.
  CHECK(work_seconds(gemm(1000, 1000, 1000), cluster, compute, 4) == near(2e-3));
}

TEST_CASE("a measured curve decides where there is one, and contains the cost of starting") {
  cluster::Cluster cluster = example::nodes();
  cluster.fixed_task_seconds = 1e-3;
  const double before = work_seconds(gemm(1000, 1000, 1000), cluster,
                                     compute_of(cluster, strategy::Precision::kFp32), 4);
  CHECK(before == near(3e-3));
  cluster.compute["fp32"].gemm = {{"m", "n", "k"}, {{1, 1000}, {1000}, {1000}}, {1e9, 5e11}};
  CHECK(work_seconds(gemm(1000, 1000, 1000), cluster,
                     compute_of(cluster, strategy::Precision::kFp32), 4) == near(4e-3));
}

TEST_CASE("element-wise work follows the curve by working set") {
  cluster::Cluster cluster = example::nodes();
  const Work work{.kind = WorkKind::kElementWise, .amount = 1e6};
  const cluster::Compute& compute = compute_of(cluster, strategy::Precision::kFp32);
  CHECK(work_seconds(work, cluster, compute, 4) == near(1e-5));
  cluster.element_wise = {{"bytes"}, {{1e3, 1e6, 1e9}}, {4e11, 2e11, 1e11}};
  CHECK(work_seconds(work, cluster, compute, 4) == near(5e-6));
}

TEST_CASE("fp16 is priced by bf16's figures unless its own say something else") {
  cluster::Cluster cluster = example::nodes();
  using enum strategy::Precision;
  const auto peak = [&] { return compute_of(cluster, kFp16).peak_flops_per_second; };
  const double bf16 = cluster.compute.at("bf16").peak_flops_per_second;
  REQUIRE(!cluster.compute.contains("fp16"));
  CHECK(peak() == bf16);
  // The same peak, stated without bf16's curve.
  cluster.compute["fp16"] = {.peak_flops_per_second = bf16};
  cluster.compute["bf16"].gemm = {{"m", "n", "k"}, {{1000}, {1000}, {1000}}, {5e11}};
  CHECK(!compute_of(cluster, kFp16).gemm.empty());
  cluster.compute["fp16"].peak_flops_per_second = 2 * bf16;
  CHECK(peak() == 2 * bf16);
  CHECK(compute_of(cluster, kFp16).gemm.empty());
  cluster.compute.erase("bf16");
  CHECK(peak() == 2 * bf16);
  cluster.compute.erase("fp16");
  CHECK(unpriced(cluster, kFp16) ==
        "cluster nodes has no compute figures for 'fp16'; allowed: fp32, fp64");
}

TEST_CASE("fp16 has the states and the update of bf16") {
  using enum strategy::Precision;
  CHECK(state_bytes(kFp16).total() == state_bytes(kBf16).total());
  const auto amount = [](strategy::Precision p) {
    return update_work(schedule::SegmentKind::kOptimizer, 1e6, p).at(0).amount;
  };
  CHECK(amount(kFp16) == amount(kBf16));
}

TEST_CASE("a precision without figures is refused with those that have some") {
  cluster::Cluster cluster = example::nodes();
  cluster.compute.erase("bf16");
  CHECK(unpriced(cluster, strategy::Precision::kFp64).empty());
  CHECK(unpriced(cluster, strategy::Precision::kBf16) ==
        "cluster nodes has no compute figures for 'bf16'; allowed: fp32, fp64");
  CHECK_THROWS_WITH_AS(compute_of(cluster, strategy::Precision::kBf16),
                       "cluster nodes has no compute figures for 'bf16'; allowed: fp32, fp64",
                       InvalidInput);
}

}  // namespace piper::cost
