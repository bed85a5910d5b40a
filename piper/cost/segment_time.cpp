#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/cost/segment_time.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>

namespace piper::cost {
namespace {

double flops_per_second(const cluster::Compute& compute) {
  const double efficiency =
      compute.gemm_efficiency > 0 ? compute.gemm_efficiency : kAssumedGemmEfficiency;
  return efficiency * compute.peak_flops_per_second;
}

double gemm_seconds(const Work& w, const cluster::Cluster& cluster, const cluster::Compute& compute,
                    double element_bytes) {
  const double rate =
      compute.gemm.empty() ? flops_per_second(compute) : compute.gemm.at({w.m, w.n, w.k});
  // Thinner products than any that were measured are bound by memory, too.
  const double bytes = (w.m * w.n + w.m * w.k + w.n * w.k) * element_bytes;
  return std::max(w.amount / rate, bytes / cluster.memory_bytes_per_second);
}

double attention_seconds(const Work& w, const cluster::Compute& compute) {
  const bool backward = w.kind == WorkKind::kAttentionBackward;
  const cluster::Grid& grid = backward ? compute.attention_backward : compute.attention;
  if (!grid.empty()) return w.amount / grid.at({w.sequence, w.head_dim});
  return w.amount / flops_per_second(compute);
}

// Bytes at the rate of their working set; the pieces that a pass works through are never larger
// than it.
double streaming_seconds(double bytes, const cluster::Grid& grid, double fallback) {
  if (bytes <= 0) return 0;
  return bytes / (grid.empty() ? fallback : grid.at({bytes}));
}

double once(const Work& w, const cluster::Cluster& cluster, const cluster::Compute& compute,
            double element_bytes) {
  switch (w.kind) {
    case WorkKind::kGemm:
      return gemm_seconds(w, cluster, compute, element_bytes);
    case WorkKind::kAttention:
    case WorkKind::kAttentionBackward:
      return attention_seconds(w, compute);
    case WorkKind::kElementWise:
      return streaming_seconds(w.amount, cluster.element_wise, cluster.memory_bytes_per_second);
    case WorkKind::kExponential: {
      const double rate = cluster.number("exponential_elements_per_second");
      return rate > 0 ? w.amount / rate : 0;
    }
    case WorkKind::kCopy:  // the curve is by payload; memory sees a read and a write
      return streaming_seconds(w.amount, cluster.copy, cluster.memory_bytes_per_second / 2);
    case WorkKind::kFromMemory:
      return cluster.memory_bytes_per_second > 0 ? w.amount / cluster.memory_bytes_per_second : 0;
    case WorkKind::kOptimizer: {
      const double rate = cluster.number("optimizer_bytes_per_second");
      if (rate > 0) return w.amount / rate;
      return streaming_seconds(w.amount, cluster.element_wise, cluster.memory_bytes_per_second);
    }
  }
  return 0;
}

// A measured rate of a product contains the cost of starting it.
bool start_is_measured(const Work& w, const cluster::Compute& compute) {
  switch (w.kind) {
    case WorkKind::kGemm:
      return !compute.gemm.empty();
    case WorkKind::kAttention:
      return !compute.attention.empty();
    case WorkKind::kAttentionBackward:
      return !compute.attention_backward.empty();
    case WorkKind::kElementWise:
    case WorkKind::kExponential:
    case WorkKind::kCopy:
    case WorkKind::kOptimizer:
    case WorkKind::kFromMemory:
      return false;
  }
  return false;
}

const char* compute_key(strategy::Precision precision) {
  switch (precision) {
    case strategy::Precision::kFp32:
      return "fp32";
    case strategy::Precision::kBf16:
      return "bf16";
    case strategy::Precision::kFp64:
      return "fp64";
    case strategy::Precision::kFp8:
    case strategy::Precision::kMxfp8:
      return "fp8";
    case strategy::Precision::kNvfp4:
      return "fp4";
    case strategy::Precision::kFp16:
      return "fp16";
  }
  return "";
}

// Null where the cluster has none. A statement of fp16 that is bf16's peak alone adds nothing to
// bf16's figures, which may have measured curves: products of both take the same time.
const cluster::Compute* find_compute(const cluster::Cluster& cluster,
                                     strategy::Precision precision) {
  const auto find = [&](const char* key) {
    const auto found = cluster.compute.find(key);
    return found == cluster.compute.end() ? nullptr : &found->second;
  };
  const cluster::Compute* own = find(compute_key(precision));
  if (precision != strategy::Precision::kFp16) return own;
  const cluster::Compute* bf16 = find("bf16");
  const bool says_more =
      own != nullptr && (bf16 == nullptr || !own->gemm.empty() ||
                         own->peak_flops_per_second != bf16->peak_flops_per_second);
  return says_more ? own : bf16;
}

}  // namespace

const cluster::Compute& compute_of(const cluster::Cluster& cluster, strategy::Precision precision) {
  const cluster::Compute* found = find_compute(cluster, precision);
  if (found != nullptr) return *found;
  throw InvalidInput(unpriced(cluster, precision));
}

std::string unpriced(const cluster::Cluster& cluster, strategy::Precision precision) {
  if (find_compute(cluster, precision) != nullptr) return "";
  std::vector<std::string> known;
  for (const auto& [name, compute] : cluster.compute) known.push_back(name);
  return fmt::format("cluster {} has no compute figures for '{}'; allowed: {}", cluster.name,
                     strategy::name(precision), fmt::join(known, ", "));
}

double work_seconds(const Work& work, const cluster::Cluster& cluster,
                    const cluster::Compute& compute, double element_bytes) {
  const double start =
      start_is_measured(work, compute) ? 0 : work.launches * cluster.fixed_task_seconds;
  return work.repetitions * (once(work, cluster, compute, element_bytes) + start);
}

double work_seconds(const std::vector<Work>& list, const cluster::Cluster& cluster,
                    const cluster::Compute& compute, double element_bytes) {
  double seconds = 0;
  for (const Work& work : list) seconds += work_seconds(work, cluster, compute, element_bytes);
  return seconds;
}

namespace {

constexpr const char* kMeasuredOverPriced = "measured_over_priced.";

std::string general_name(schedule::SegmentKind kind, graph::Phase phase) {
  return fmt::format("{}{}.{}", kMeasuredOverPriced, schedule::name(kind),
                     graph::is_backward(phase) ? "backward" : "forward");
}

// 0 = not measured.
double measured_over_priced(const cluster::Cluster& cluster, schedule::SegmentKind kind,
                            graph::Phase phase, strategy::Precision precision) {
  if (cluster.numbers.empty()) return 0;
  const std::string name = measured_over_priced_name(kind, phase, strategy::priced_as(precision));
  const double own = cluster.number(name);
  return own > 0 ? own : cluster.number(general_name(kind, phase));
}

}  // namespace

bool is_measured(const cluster::Cluster& cluster) {
  if (cluster.kind != "gpu") return true;
  const auto found = cluster.numbers.lower_bound(kMeasuredOverPriced);
  return found != cluster.numbers.end() && found->first.starts_with(kMeasuredOverPriced);
}

double segment_seconds(const model::Model& model, const schedule::Segment& segment,
                       graph::Phase phase, const SegmentWork& work, const cluster::Cluster& cluster,
                       strategy::Precision precision) {
  // A dense MLP is the experts' kernels on all rows.
  const bool dense = segment.kind == schedule::SegmentKind::kDenseMlp ||
                     segment.kind == schedule::SegmentKind::kSharedExperts;
  // Parts of attention are its kernels.
  const bool of_attention = segment.kind == schedule::SegmentKind::kProjection ||
                            segment.kind == schedule::SegmentKind::kRingStep;
  const schedule::SegmentKind kind = dense          ? schedule::SegmentKind::kExperts
                                     : of_attention ? schedule::SegmentKind::kAttention
                                                    : segment.kind;
  const double factor = measured_over_priced(cluster, kind, phase, precision);
  return (factor > 0 ? factor : 1) * work_seconds(segment_work(model, segment, phase, work),
                                                  cluster, compute_of(cluster, precision),
                                                  static_cast<double>(work.element_bytes));
}

std::string measured_over_priced_name(schedule::SegmentKind kind, graph::Phase phase,
                                      strategy::Precision precision) {
  return fmt::format("{}.{}", general_name(kind, phase), strategy::name(precision));
}

Scatter scatter(const cluster::Cluster& cluster) {
  return {.task = cluster.number(kTaskScatterName), .rank = cluster.number(kRankScatterName)};
}

double core_hand_over_seconds(const cluster::Cluster& cluster) {
  return cluster.number(kCoreHandOverName);
}

double update_seconds(schedule::SegmentKind kind, double num_parameters,
                      const cluster::Cluster& cluster, strategy::Precision precision) {
  return work_seconds(update_work(kind, num_parameters, precision), cluster,
                      compute_of(cluster, precision),
                      static_cast<double>(element_bytes(precision)));
}

double residuals_found_seconds(const cluster::Cluster& cluster, const strategy::Strategy& strategy,
                               int64_t elements) {
  if (!strategy::compresses_experts(strategy)) return 0;
  const double share = static_cast<double>(elements) / static_cast<double>(strategy.mesh.edp());
  if (const double rate = cluster.number(kResidualRateName); rate > 0) return share / rate;
  // Read as it is and as it was told; their distance written, read, and searched.
  const auto weight = static_cast<double>(state_bytes(strategy.precision).weight);
  return streaming_seconds(share * (2 * weight + 3 * std::max(4.0, weight)), cluster.element_wise,
                           cluster.memory_bytes_per_second);
}

double residuals_put_seconds(const cluster::Cluster& cluster, const strategy::Strategy& strategy,
                             int64_t elements) {
  if (!strategy::compresses_experts(strategy)) return 0;
  const auto weight = static_cast<double>(state_bytes(strategy.precision).weight);
  const double sent = static_cast<double>(elements) * strategy::sent_part(strategy);
  return streaming_seconds(2 * sent * weight, cluster.element_wise,
                           cluster.memory_bytes_per_second);
}

}  // namespace piper::cost
