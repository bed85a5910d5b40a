#include <doctest/doctest.h>
#include <piper/cluster/findings.h>

using namespace piper::cluster;

namespace {

CurvePoint at(std::vector<double> coordinates, double rate) {
  return {std::move(coordinates), rate, {.seconds = 1, .num_samples = 6}};
}

Curve over_sequences(const std::vector<std::pair<double, double>>& rates) {
  Curve curve{.name = "x", .unit = "flops", .axes = {"sequences"}};
  for (const auto& [sequences, rate] : rates) curve.points.push_back(at({sequences}, rate));
  return curve;
}

}  // namespace

TEST_CASE(
    "head sizes are compared at equal shapes: the best is that of the least loss over all of "
    "them") {
  const Curve attention{.name = "attention.fp32",
                        .unit = "flops",
                        .axes = {"batch", "sequence", "heads", "head_dim", "kv_heads"},
                        .points = {at({1, 128, 16, 32, 16}, 50), at({1, 128, 8, 64, 8}, 100),
                                   at({1, 128, 4, 128, 4}, 80), at({4, 512, 16, 32, 16}, 60),
                                   at({4, 512, 8, 64, 8}, 90), at({4, 512, 4, 128, 4}, 100),
                                   // Grouped heads: a shape of its own, one head size only.
                                   at({1, 128, 8, 64, 2}, 900)}};
  const std::vector<HeadSize> ranked = rank_head_sizes(attention);
  REQUIRE(ranked.size() == 3);
  CHECK(ranked[0].head_dim == 64);  // sqrt(1 x 0.9) = 0.949 against sqrt(0.8 x 1) = 0.894
  CHECK(ranked[0].relative_rate == doctest::Approx(0.9486833));
  CHECK(ranked[0].num_shapes == 2);
  CHECK(ranked[1].head_dim == 128);
  CHECK(ranked[2].relative_rate == doctest::Approx(0.5477226));  // sqrt(0.5 x 0.6)
}

TEST_CASE("attention and experts join at the micro-batches where both reach 90 % of their best") {
  const Curve attention = over_sequences({{1, 80}, {2, 95}, {4, 100}, {8, 97}, {16, 70}});
  const Curve experts = over_sequences({{8, 200}, {4, 181}, {2, 170}, {1, 50}, {32, 60}});
  const Join join = join_micro_batches(attention, experts);
  REQUIRE(join.points.size() == 4);  // 16 and 32 are in one curve alone
  CHECK(join.points[0].sequences == 1);
  CHECK_FALSE(join.points[1].both_well);  // experts at 85 %
  CHECK(join.points[2].both_well);        // 100 % and 90.5 %
  CHECK(join.points[2].experts_part == doctest::Approx(0.905));
  CHECK(join.points[3].both_well);
  REQUIRE(join.smallest.has_value());
  CHECK(*join.smallest == 4);
  CHECK(*join_micro_batches(attention, experts, 0.8).smallest == 2);
  CHECK(join.well_text() == "4, 8");
}

TEST_CASE("where attention and experts want different micro-batches the join is empty, not wrong") {
  const Join join =
      join_micro_batches(over_sequences({{1, 100}, {2, 50}}), over_sequences({{1, 50}, {2, 100}}));
  CHECK(join.points.size() == 2);
  CHECK_FALSE(join.smallest.has_value());
}
