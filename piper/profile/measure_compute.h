// Compute micro-benchmarks (Piper section IV-A): rates of the operations that segments are made of,
// as curves to be measured (measure_points.h) and as the grids and constants that prices are made
// of.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/profile/measure_points.h>
#include <piper/strategy/strategy.h>

#include <vector>

namespace piper::profile {

// GEMM and attention over their grids, element-wise passes and copies over the working set, and
// single points: the cost of an operation on a handful of elements, SiLU, AdamW. Names end in
// ".<precision>" where it matters.
std::vector<BenchCurve> price_curves(strategy::Precision precision, const BenchDevice& device);

// Fills what prices read from those curves. Requires all of them, every point measured.
//   compute[precision]  GEMM and attention grids; peak = the best GEMM rate seen
//   element_wise, copy, fixed_task_seconds, memory_bytes_per_second, numbers: when `first`
void fill_prices(const std::vector<cluster::Curve>& measured, strategy::Precision precision,
                 bool first, cluster::Cluster& cluster);

}  // namespace piper::profile
