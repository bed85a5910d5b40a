// Seconds of compute on one device (or core) of a cluster, from its measured curves where it has
// them and from peak and bandwidth where it has not.
//
//   GEMM          the grid of rates at (m, n, k); else the larger of
//                 FLOPs / (efficiency x peak) and bytes of the three matrices / memory bandwidth:
//                 a GEMM with few rows is bound by its weights
//   attention     the grids at (sequence, head size); else FLOPs / (efficiency x peak), as GEMMs
//   element-wise  the rate at this working set; else memory bandwidth
//   any           plus fixed_task_seconds for each operation started
//
// Only one path: a CPU differs from a GPU by its curves. Thread-safe.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/work.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cost {

// Efficiency of large GEMMs where a cluster states neither a grid nor a figure: what well-tuned
// libraries reach on the shapes of transformers. An assumption; every built-in cluster states its
// own.
inline constexpr double kAssumedGemmEfficiency = 0.7;

// The cluster's figures that price products: kMxfp8 uses those of "fp8", kNvfp4 of "fp4", kFp16 of
// "bf16" unless its own differ. Throws InvalidInput naming the precisions that it has.
const cluster::Compute& compute_of(const cluster::Cluster& cluster, strategy::Precision precision);
// Why nothing can be priced in this precision: what compute_of() would throw. Empty when it can.
std::string unpriced(const cluster::Cluster& cluster, strategy::Precision precision);

double work_seconds(const Work& work, const cluster::Cluster& cluster,
                    const cluster::Compute& compute, double element_bytes);
double work_seconds(const std::vector<Work>& list, const cluster::Cluster& cluster,
                    const cluster::Compute& compute, double element_bytes);

// Under what name of cluster.numbers a machine keeps how much longer whole segments of a kind take
// than the sum of their operations ("measured_over_priced.experts.forward.bf16"; recomputation
// counts as forward). A name without the precision is that of every precision that has none of its
// own. Absent: 1.
std::string measured_over_priced_name(schedule::SegmentKind kind, graph::Phase phase,
                                      strategy::Precision precision);

// Whether this Piper has measured the machine: CPUs, and GPUs on which `piper profile` has run
// whole segments, so that the cluster has such factors.
bool is_measured(const cluster::Cluster& cluster);

// Seconds to find the residuals of a rank's share of so many weights of experts (strategy/
// residual_code.h), behind their update: at the rate that `piper profile` has measured
// ("residual_elements_per_second" of cluster.numbers, of the share), else as passes over memory.
// And to put in those of all owners, behind their gather. 0 where experts travel whole.
double residuals_found_seconds(const cluster::Cluster& cluster, const strategy::Strategy& strategy,
                               int64_t elements);
double residuals_put_seconds(const cluster::Cluster& cluster, const strategy::Strategy& strategy,
                             int64_t elements);
inline constexpr const char* kResidualRateName = "residual_elements_per_second";

// By how much times differ on this machine between equal tasks of a rank, and between ranks for a
// whole step (of a host's cores one is busier than another, for seconds): standard deviations of
// logarithms, which `piper profile` measures ("task_scatter_ratio" and "rank_scatter_ratio" of
// cluster.numbers). Absent: 0.
struct Scatter {
  double task = 0, rank = 0;
  bool none() const { return task == 0 && rank == 0; }
};
Scatter scatter(const cluster::Cluster& cluster);
inline constexpr const char* kTaskScatterName = "task_scatter_ratio";
inline constexpr const char* kRankScatterName = "rank_scatter_ratio";

// What passes between a rank's giving back a core and the next one's computing on it, where ranks
// outnumber cores (`piper profile`; "core_hand_over_seconds" of cluster.numbers). Absent: 0.
double core_hand_over_seconds(const cluster::Cluster& cluster);
inline constexpr const char* kCoreHandOverName = "core_hand_over_seconds";

// One compute segment in a phase, times that factor; update segments through update_seconds().
double segment_seconds(const model::Model& model, const schedule::Segment& segment,
                       graph::Phase phase, const SegmentWork& work, const cluster::Cluster& cluster,
                       strategy::Precision precision);

// kGradientNorm or kOptimizer of a rank holding `num_parameters`.
double update_seconds(schedule::SegmentKind kind, double num_parameters,
                      const cluster::Cluster& cluster, strategy::Precision precision);

}  // namespace piper::cost
