// Which library does which fp32 products fastest on this machine (nn/product_choice.h): measured by
// `piper profile` before all else, kept among a cluster's curves, and read from there by runs.
#pragma once

#include <piper/cluster/curve.h>
#include <piper/nn/product_choice.h>
#include <piper/runtime/measure_points.h>

#include <optional>
#include <vector>

namespace piper::runtime {

// One point for each class of products and library, both libraries of a class in turn. No points
// where the build has one library alone.
BenchCurve product_library_curve(const BenchDevice& device);

// The faster library of each class, by the medians; oneDNN where its rate is at least
// kOnednnAdvantage times libtorch's. Nothing without that curve, or where a class lacks a point.
std::optional<nn::ProductChoice> product_choice_of(const std::vector<cluster::Curve>& measured);
// oneDNN's rate over libtorch's for each of nn::product_classes(); empty where the curve is not whole.
std::vector<double> product_rate_ratios(const std::vector<cluster::Curve>& measured);

inline constexpr double kOnednnAdvantage = 1.02;  // else the machine's noise would choose

}  // namespace piper::runtime
