// Which library does which fp32 products fastest on this machine (nn/product_choice.h): measured by
// `piper profile` before all else, kept among a cluster's curves, and read from there by runs.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cluster/curve.h>
#include <piper/nn/product_choice.h>
#include <piper/profile/measure_points.h>

#include <optional>
#include <vector>

namespace piper::profile {

// One point for each class of products and library, both libraries of a class in turn. No points
// where the build has one library alone.
BenchCurve product_library_curve(const BenchDevice& device);

struct ProductComparison {
  double onednn_over_libtorch = 1;  // rates, of the medians
  // The faster one where the medians' intervals lie kSureAdvantage apart; else what the rule of
  // nn/product.h says.
  nn::ProductLibrary chosen = nn::ProductLibrary::kLibtorch;
  bool is_sure = true;
};
// Shapes of one class differ by nearly as much: with 1.01, held to AVX2 on Zen 4, a mixture layer
// became 12 % slower than by the rule, because its products lie beside the measured points.
inline constexpr double kSureAdvantage = 1.15;

// By nn::product_classes(); nothing without that curve, or where a class lacks a point.
std::vector<ProductComparison> compared_products(const std::vector<cluster::Curve>& measured);
std::optional<nn::ProductChoice> product_choice_of(const std::vector<cluster::Curve>& measured);

}  // namespace piper::profile
