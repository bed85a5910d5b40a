#include <doctest/doctest.h>
#include <piper/cost/mfu.h>
#include <piper/model/count.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

namespace piper::cost {

TEST_CASE("the peak is that of the devices used, or of the cores where ranks share them") {
  cluster::Cluster cluster = example::nodes();
  CHECK(peak_flops_per_second(cluster, strategy::Precision::kFp32, 6) == 6e12);
  cluster.cores_per_node = 3;  // 4 ranks a node
  CHECK(peak_flops_per_second(cluster, strategy::Precision::kFp32, 4) == 3e12);
  CHECK(peak_flops_per_second(cluster, strategy::Precision::kFp32, 6) == 5e12);
}

TEST_CASE("eq. 12: hardware efficiency while computing times the share that computes") {
  cluster::Cluster cluster = example::nodes();
  cluster.compute["fp32"].gemm_efficiency = 0.5;
  // 8 devices reach 4e12 FLOP/s; 1e12 FLOPs in 1 s of compute are 25 %; half of the step computes.
  const EffectiveMfu e = effective_mfu(cluster, strategy::Precision::kFp32, 8, 1e12, 1, 2);
  CHECK(e.hardware_efficiency == near(0.25));
  CHECK(e.compute_fraction == near(0.5));
  CHECK(e.mfu() == near(0.125));
}

TEST_CASE("a step's FLOPs are three forwards of its tokens") {
  const model::Model model = example::mixture(3);
  CHECK(step_flops(model, 16, 10) == near(3 * 160 * model::token_flops(model, 16).forward()));
  // Dropped copies are no work: routed experts by half less.
  CHECK(step_flops(model, 16, 10) - step_flops(model, 16, 10, 0.5) ==
        near(3 * 160 * 0.5 * model::token_flops(model, 16).routed_experts));
  strategy::Strategy s = example::strategy(model, 1, 1, 1);
  CHECK(kept_part(model, s) == 1);
  s.capacity.factor = 1;
  CHECK(kept_part(model, s) == 1);
  s.capacity.factor = 0.5;
  CHECK(kept_part(model, s) == 0.5);
}

}  // namespace piper::cost
