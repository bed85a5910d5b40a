#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/shape_curves.h>

#include <numeric>

using namespace piper;
using namespace piper::profile;

namespace {

model::Model mixture(int64_t experts) {
  model::Layer layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  layer.feed_forward = {.ffn = 24, .num_experts = experts, .top_k = 2};
  model::Model model;
  model.name = "toy";
  model.hidden = 32;
  model.layers = {layer};
  return model;
}

}  // namespace

TEST_CASE(
    "skewed rows sum to the total and fall with the expert's number; without skew they are even") {
  CHECK(skewed_rows(4, 400, 0) == std::vector<int64_t>{100, 100, 100, 100});
  // 1 : 1/2 : 1/3 of 110 rows.
  CHECK(skewed_rows(3, 110, 1) == std::vector<int64_t>{60, 30, 20});
  for (const int64_t experts : {1, 7, 16}) {
    const auto rows = skewed_rows(experts, 101, 1);
    CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) == 101);
    CHECK(rows.front() >= rows.back());
  }
}

TEST_CASE("experts divide among as many of the ranks as their number allows") {
  CHECK(experts_among(mixture(8), 4) == 4);
  CHECK(experts_among(mixture(6), 4) == 3);
  CHECK(experts_among(mixture(7), 4) == 1);
  CHECK(experts_among(mixture(2), 7) == 2);
  CHECK(experts_among(mixture(0), 4) == 1);
}

TEST_CASE("experts alone are measured both ways at the same points, without a model") {
  const std::vector<BenchCurve> curves = expert_curves(strategy::Precision::kBf16, {}, 1e7);
  REQUIRE(curves.size() == 2);
  CHECK(curves[0].name == "expert_gemm.bf16");
  CHECK(curves[1].name == "expert_gemm_grouped.bf16");
  REQUIRE(curves[0].points.size() == curves[1].points.size());
  REQUIRE_FALSE(curves[0].points.empty());
  for (size_t i = 0; i < curves[0].points.size(); ++i) {
    CHECK(curves[0].points[i].at == curves[1].points[i].at);
    CHECK(curves[0].points[i].amount == curves[1].points[i].amount);
  }
}

TEST_CASE(
    "every operation of a full profile runs, and its points have as many coordinates as axes") {
  const model::Model model = mixture(8);
  const ModelShapes shapes{.model = model, .sequence = 8, .ep = 4, .operand_bytes = 1e8};
  for (const strategy::Precision precision :
       {strategy::Precision::kFp32, strategy::Precision::kBf16}) {
    auto curves = shape_curves(precision, {}, shapes);
    for (BenchCurve& curve : join_curves(precision, {}, shapes)) curves.push_back(curve);
    CHECK(curves.size() == 11);
    for (const BenchCurve& curve : curves) {
      INFO(curve.name);
      REQUIRE_FALSE(curve.points.empty());
      for (const BenchPoint& point : curve.points) {
        REQUIRE(point.at.size() == curve.axes.size());
        CHECK(point.amount > 0);
      }
      const std::function<void()> call = curve.points.front().prepare();
      call();
      call();
    }
  }
}

TEST_CASE("experts run one by one and grouped, an expert without rows among them") {
  const ExpertsShape shape{.hidden = 16, .ffn = 8, .rows = {3, 0, 5}};
  // Three products of 8 rows, 16 x 8: 2 x 3 x 8 x 16 x 8.
  CHECK(shape.flops() == 6144);
  for (const Prepare& prepare : {experts_one_by_one(shape, {}), experts_grouped(shape, {})})
    prepare()();
}

TEST_CASE("a rank's experts get the rows that all ranks of the group send them") {
  // 1 sequence of 8 tokens, top 2, on each of 4 ranks: 64 copies, 8 experts: 8 rows each, 2 experts
  // a rank.
  const ModelShapes shapes{.model = mixture(8), .sequence = 8, .ep = 4, .operand_bytes = 1e8};
  const std::vector<BenchCurve> join = join_curves(strategy::Precision::kFp32, {}, shapes);
  CHECK(join[1].points[0].amount == 6.0 * 16 * 32 * 24);
  CHECK(join[1].points[3].at == std::vector<double>{8});
  CHECK(join[1].points[3].amount == 8 * join[1].points[0].amount);
  // 4 heads and 2 key heads of 16: 12 x 16 columns in all; half of 8 x 8 scores, twice, 4 heads.
  CHECK(join[0].points[0].amount == 2.0 * 8 * 32 * 192 + 2 * 2 * 4 * 32 * 16);
}

TEST_CASE(
    "experts too large for a rank's share are measured as far as they fit, and one too large is "
    "said") {
  ModelShapes shapes{.model = mixture(8), .sequence = 8, .ep = 1, .operand_bytes = 60e3};
  // An expert holds 3 x 32 x 24 weights and one row's 136 values, 4 bytes each: 9,760 bytes; 3 fit
  // in half of 60 kB.
  const auto join = join_curves(strategy::Precision::kFp32, {}, shapes);
  CHECK(join[1].points[0].amount == 6.0 * 3 * 2 * 32 * 24);
  shapes.operand_bytes = 10e3;
  CHECK_THROWS_AS(join_curves(strategy::Precision::kFp32, {}, shapes), InvalidInput);
}

TEST_CASE("a device that is not here is refused by name") {
  CHECK(parse_bench_device("cpu").is_cpu());
  for (const char* text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:9999", "", "cpu:0"})
    CHECK_THROWS_AS(parse_bench_device(text), InvalidInput);
}
