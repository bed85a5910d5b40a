#include <doctest/doctest.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/runtime/measure_products.h>

#include <algorithm>

namespace piper::runtime {
namespace {

// As measured, with seconds made up: oneDNN takes `ratio` of libtorch's time for gradients alone.
cluster::Curve measured_as(double ratio) {
  cluster::Curve curve{
      .name = "product_libraries", .unit = "flops", .axes = {"form", "rows", "width", "library"}};
  for (const nn::ProductClass& each : nn::product_classes())
    for (const int library : {0, 1}) {
      const bool is_other = library == 1 && each.form == nn::ProductForm::kGradient;
      cluster::CurvePoint point{
          .at = {static_cast<double>(each.form), static_cast<double>(each.rows),
                 static_cast<double>(each.width), static_cast<double>(library)},
          .amount = 1e9};
      point.timing.seconds = is_other ? ratio : 1.0;
      curve.points.push_back(point);
    }
  return curve;
}

}  // namespace

TEST_CASE("the faster library of each class is chosen; noise chooses nothing") {
  const auto fast = product_choice_of({measured_as(0.9)});
  REQUIRE(fast.has_value());
  CHECK(fast->text() == "tttttttt tttttttt oooooooo");
  CHECK(product_choice_of({measured_as(0.99)})->num_onednn() == 0);
  CHECK(product_choice_of({measured_as(1.2)})->num_onednn() == 0);
}

TEST_CASE("a class without a point, or no curve: nothing is chosen") {
  CHECK(!product_choice_of({}).has_value());
  cluster::Curve curve = measured_as(0.9);
  curve.points.pop_back();
  CHECK(!product_choice_of({curve}).has_value());
}

TEST_CASE("a point for each class and library, and each computes its product") {
  const BenchCurve curve = product_library_curve(BenchDevice{});
  REQUIRE(curve.points.size() == (nn::has_onednn() ? 2 * nn::product_classes().size() : 0));
  for (const BenchPoint& point : curve.points) {
    CHECK(point.amount == 2 * point.at[1] * point.at[2] * nn::kMeasuredInner);
    CHECK_NOTHROW(point.prepare()());
  }
}

}  // namespace piper::runtime
