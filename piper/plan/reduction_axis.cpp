#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/rank_parameters.h>
#include <piper/plan/reduction_axis.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/state_bytes.h>

#include <vector>

namespace piper::plan {
namespace {

using strategy::Reduction;

const char* words(Reduction algorithm) {
  return algorithm == Reduction::kDirect ? "directly" : "inside nodes first";
}

}  // namespace

double reduction_seconds(const model::Model& model, const cluster::Cluster& cluster,
                         const strategy::Strategy& s, Reduction algorithm) {
  double whole = 0, parts = 0, experts = 0;
  for (int32_t layer = 0; layer < static_cast<int32_t>(model.num_layers()); ++layer) {
    whole += static_cast<double>(cost::whole_parameters(model, layer, s));
    parts += static_cast<double>(cost::part_parameters(model, layer, s));
    experts +=
        static_cast<double>(cost::expert_parameters(model, layer, s.mesh.ranks_per_expert_set()));
  }
  const auto gradient = static_cast<double>(strategy::state_bytes(s.precision).gradient) /
                        static_cast<double>(model.num_layers());
  const strategy::RankLayout layout(s);
  const auto seconds = [&](strategy::Axis axis, double parameters) {
    if (parameters == 0 || layout.size(axis) == 1) return 0.0;
    return cost::all_reduce_seconds(cluster, cost::group_of(layout, axis, Rank(0)),
                                    parameters * gradient, algorithm);
  };
  return seconds(strategy::axis_of_whole(s), whole) + seconds(strategy::Axis::kData, parts) +
         seconds(strategy::Axis::kExpertData, experts);
}

Reduction cheaper_reduction(const model::Model& model, const cluster::Cluster& cluster,
                            const strategy::Strategy& s) {
  if (s.mesh.world() <= cluster.devices_per_node()) return Reduction::kDirect;
  const auto seconds = [&](Reduction algorithm) {
    return reduction_seconds(model, cluster, s, algorithm);
  };
  return seconds(Reduction::kHierarchical) < (1 - kReductionTie) * seconds(Reduction::kDirect)
             ? Reduction::kHierarchical
             : Reduction::kDirect;
}

std::string explain_reduction(const model::Model& model, const cluster::Cluster& cluster,
                              const strategy::Strategy& s) {
  if (reduction_seconds(model, cluster, s, s.reduction) == 0) return "";
  const auto seconds = [&](Reduction algorithm) {
    return format_seconds(reduction_seconds(model, cluster, s, algorithm));
  };
  const Reduction other =
      s.reduction == Reduction::kDirect ? Reduction::kHierarchical : Reduction::kDirect;
  return fmt::format("gradients of a layer are summed {} in {}; {} it would be {}",
                     words(s.reduction), seconds(s.reduction), words(other), seconds(other));
}

std::string explain_reduction_start(cost::Estimator& estimator, const strategy::Strategy& s,
                                    double imbalance) {
  if (s.zero >= 2) return "";
  std::vector<double> seconds;
  for (const strategy::ReductionStart start : strategy::kReductionStarts) {
    strategy::Strategy with = s;
    with.reduction_start = start;
    seconds.push_back(estimator.estimate(with, imbalance).seconds);
  }
  if (seconds[0] == seconds[1] && seconds[0] == seconds[2]) return "";
  return fmt::format(
      "sums of gradients start {}: a step of {} when they are ready, {} behind exchanges and "
      "messages, {} at the end",
      strategy::name(s.reduction_start), format_seconds(seconds[0]), format_seconds(seconds[1]),
      format_seconds(seconds[2]));
}

}  // namespace piper::plan
