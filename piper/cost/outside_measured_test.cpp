#include <doctest/doctest.h>
#include <piper/cost/outside_measured.h>
#include <testing/cost/example_model.h>

#include <algorithm>

using namespace piper;

namespace {

cluster::Cluster measured(double largest_rows) {
  cluster::Cluster c;
  c.name = "measured";
  c.kind = "cpu";
  c.memory_bytes = int64_t{1} << 40;
  c.memory_bytes_per_second = 1e10;
  c.levels = {{.name = "node", .num_members = 4, .link = {1e-5, 1e9}}};
  cluster::Compute& compute = c.compute["fp32"];
  compute.peak_flops_per_second = 1e11;
  compute.gemm = {
      {"m", "n", "k"}, {{1, largest_rows}, {1, 1e6}, {1, 1e6}}, std::vector<double>(8, 1e10)};
  return c;
}

strategy::Strategy one_rank(const model::Model& model, int64_t sequences) {
  strategy::Strategy s;
  s.layers_per_stage = {model.num_layers()};
  s.sequence = 128;
  s.global_batch_sequences = s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  return s;
}

}  // namespace

TEST_CASE("a strategy whose products were all measured is outside of nothing") {
  const model::Model model = cost::example::mixture(2);
  const strategy::Strategy s = one_rank(model, 2);
  CHECK(cost::outside_measured(model, measured(1e6), {{s}}).empty());
}

TEST_CASE("the update is asked for the parameters that there are, not for the many of its price") {
  const model::Model model = cost::example::mixture(2);
  cluster::Cluster c = measured(1e6);
  c.element_wise = {{"bytes"}, {{1, 1e8}}, {9e12, 1e9}};  // still falling at its end
  const strategy::Strategy s = one_rank(model, 2);
  CHECK(cost::outside_measured(model, c, {{s}}).empty());
  c.element_wise.points = {{1, 1e3}};
  const auto outside = cost::outside_measured(model, c, {{s}});
  REQUIRE(outside.size() == 1);
  CHECK(outside[0].asked_high < 1e8);
}

TEST_CASE(
    "rows beyond the measured ones are said with axis, value and range, over all strategies") {
  const model::Model model = cost::example::mixture(2);
  const std::vector<strategy::Strategy> strategies = {one_rank(model, 2), one_rank(model, 8)};
  const auto outside = cost::outside_measured(model, measured(512), strategies);
  const auto rows = std::ranges::find(outside, "m", &cluster::Outside::axis);
  REQUIRE(rows != outside.end());
  CHECK(rows->curve == "compute.fp32.gemm");
  CHECK(rows->measured_high == 512);
  CHECK(rows->asked_high >= 8 * 128);
  const auto alone = cost::outside_measured(model, measured(512), {{strategies[0]}});
  CHECK(std::ranges::none_of(
      alone, [](const auto& o) { return o.asked_high >= 8 * 128 && o.axis == "m"; }));
}

TEST_CASE("a message larger than any that was measured is outside of its link") {
  const model::Model model = cost::example::mixture(2);
  cluster::Cluster c = measured(1e6);
  c.numbers = {{"all_to_all_bytes_per_second", 1e9}, {"all_reduce_bytes_per_second", 1e9}};
  cluster::Curve reduce{.name = "all-reduce", .unit = "bytes", .axes = {"bytes"}};
  for (const double bytes : {16.0, 1024.0})
    reduce.points.push_back({{bytes}, bytes, {1, 1, 1, 1, 9}});
  reduce.fit = cluster::Fit{.residuals = {0, 0}};
  c.curves = {reduce};
  strategy::Strategy s = one_rank(model, 1);
  s.mesh.dp = 4;
  s.global_batch_sequences = 4;
  const auto outside = cost::outside_measured(model, c, {{s}});
  REQUIRE(outside.size() == 1);
  CHECK(outside[0].curve == "all-reduce");
  CHECK(outside[0].axis == "bytes");
  CHECK(outside[0].asked_high > 1024);
}
