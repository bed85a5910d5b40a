#include <doctest/doctest.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/profile/measure_products.h>

#include <algorithm>

namespace piper::profile {
namespace {

// As measured, with seconds made up: oneDNN takes `ratio` of libtorch's time for gradients alone,
// and no median is known better than `spread` of it.
cluster::Curve measured_as(double ratio, double spread = 0) {
  cluster::Curve curve{
      .name = "product_libraries", .unit = "flops", .axes = {"form", "rows", "width", "library"}};
  for (const nn::ProductClass& each : nn::product_classes())
    for (const int library : {0, 1}) {
      const bool is_gradient = each.form == nn::ProductForm::kGradient;
      const double seconds = library == 0 ? 1.0 : is_gradient ? ratio : 2.0;
      cluster::CurvePoint point{
          .at = {static_cast<double>(each.form), static_cast<double>(each.rows),
                 static_cast<double>(each.width), static_cast<double>(library)},
          .amount = 1e9};
      point.timing = {.seconds = seconds,
                      .low_seconds = seconds * (1 - spread),
                      .high_seconds = seconds * (1 + spread)};
      curve.points.push_back(point);
    }
  return curve;
}

}  // namespace

TEST_CASE("the faster library of each class is chosen where the measurement is sure of it") {
  const auto fast = product_choice_of({measured_as(0.8)});
  REQUIRE(fast.has_value());
  CHECK(fast->text() == "tttttttt tttttttt oooooooo");
  CHECK(product_choice_of({measured_as(1.3)})->num_onednn() == 0);
}

TEST_CASE("where it is not sure, the rule of the processor stays") {
  const nn::ProductChoice rule = nn::choice_by_rule();
  for (const cluster::Curve& noise : {measured_as(0.9), measured_as(1.1), measured_as(0.8, 0.1)})
    for (const nn::ProductClass& each : nn::product_classes()) {
      if (each.form != nn::ProductForm::kGradient) continue;
      CHECK(product_choice_of({noise})->of(each.form, each.rows, each.width) ==
            rule.of(each.form, each.rows, each.width));
    }
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

}  // namespace piper::profile
