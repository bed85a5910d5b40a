#include <piper/base/error.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/measure_products.h>

#include <algorithm>
#include <array>
#include <map>

namespace piper::profile {
namespace {

constexpr const char* kCurve = "product_libraries";
constexpr std::array kLibraries = {nn::ProductLibrary::kLibtorch, nn::ProductLibrary::kOnednn};

std::vector<double> coordinates(const nn::ProductClass& of, nn::ProductLibrary library) {
  return {static_cast<double>(of.form), static_cast<double>(of.rows), static_cast<double>(of.width),
          static_cast<double>(library)};
}

}  // namespace

BenchCurve product_library_curve(const BenchDevice& device) {
  BenchCurve curve{kCurve, "flops", {"form", "rows", "width", "library"}, {}};
  if (!nn::has_onednn()) return curve;
  for (const nn::ProductClass& each : nn::product_classes())
    for (const nn::ProductLibrary library : kLibraries)
      curve.points.push_back(
          {coordinates(each, library),
           2.0 * static_cast<double>(each.rows * each.width * nn::kMeasuredInner),
           product_of(each, library, device)});
  return curve;
}

std::vector<ProductComparison> compared_products(const std::vector<cluster::Curve>& measured) {
  const cluster::Curve* curve = cluster::find_curve(measured, kCurve);
  if (curve == nullptr) return {};
  std::vector<ProductComparison> compared;
  const nn::ProductChoice rule = nn::choice_by_rule();
  for (const nn::ProductClass& each : nn::product_classes()) {
    const cluster::CurvePoint* by[kLibraries.size()] = {};
    for (const nn::ProductLibrary library : kLibraries) {
      const auto point =
          std::ranges::find(curve->points, coordinates(each, library), &cluster::CurvePoint::at);
      if (point == curve->points.end()) return {};
      by[static_cast<size_t>(library)] = &*point;
    }
    const cluster::Timing &libtorch = by[0]->timing, &onednn = by[1]->timing;
    ProductComparison one{.onednn_over_libtorch = libtorch.seconds / onednn.seconds};
    if (onednn.high_seconds * kSureAdvantage <= libtorch.low_seconds) {
      one.chosen = nn::ProductLibrary::kOnednn;
    } else if (libtorch.high_seconds * kSureAdvantage <= onednn.low_seconds) {
      one.chosen = nn::ProductLibrary::kLibtorch;
    } else {
      one.chosen = rule.of(each.form, each.rows, each.width);
      one.is_sure = false;
    }
    compared.push_back(one);
  }
  return compared;
}

std::optional<nn::ProductChoice> product_choice_of(const std::vector<cluster::Curve>& measured) {
  const std::vector<ProductComparison> compared = compared_products(measured);
  if (compared.empty()) return std::nullopt;
  return nn::ProductChoice(
      [&, next = size_t{0}](const nn::ProductClass&) mutable { return compared[next++].chosen; });
}

}  // namespace piper::profile
