#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/shard.h>
#include <piper/model/count.h>
#include <piper/plan/reduction_axis.h>

namespace piper::plan {
namespace {

using strategy::Reduction;

const char* words(Reduction form) {
  return form == Reduction::kDirect ? "directly" : "inside nodes first";
}

}  // namespace

double reduction_seconds(const model::Model& model, const cluster::Cluster& cluster,
                         const strategy::Mesh& mesh, strategy::Precision precision,
                         Reduction form) {
  const model::Parameters count = model::count_parameters(model);
  double dense = 0, experts = 0;
  for (const model::LayerParameters& layer : count.layers) {
    experts += static_cast<double>(layer.routed_experts);
    dense += static_cast<double>(layer.total() - layer.routed_experts);
  }
  const auto gradient = static_cast<double>(cost::state_bytes(precision).gradient) /
                        static_cast<double>(model.num_layers());
  return cost::all_reduce_seconds(cluster, {.size = mesh.dp}, dense * gradient, form) +
         cost::all_reduce_seconds(cluster, {.stride = mesh.ep, .size = mesh.edp()},
                                  experts / static_cast<double>(mesh.ep) * gradient, form);
}

Reduction cheaper_reduction(const model::Model& model, const cluster::Cluster& cluster,
                            const strategy::Mesh& mesh, strategy::Precision precision) {
  if (mesh.dp <= cluster.devices_per_node()) return Reduction::kDirect;
  const auto seconds = [&](Reduction form) {
    return reduction_seconds(model, cluster, mesh, precision, form);
  };
  return seconds(Reduction::kHierarchical) < (1 - kReductionTie) * seconds(Reduction::kDirect)
             ? Reduction::kHierarchical
             : Reduction::kDirect;
}

std::string explain_reduction(const model::Model& model, const cluster::Cluster& cluster,
                              const strategy::Strategy& s) {
  if (s.mesh.dp <= 1) return "";
  const auto seconds = [&](Reduction form) {
    return format_seconds(reduction_seconds(model, cluster, s.mesh, s.precision, form));
  };
  const Reduction other =
      s.reduction == Reduction::kDirect ? Reduction::kHierarchical : Reduction::kDirect;
  return fmt::format("gradients of a layer are summed {} in {}; {} it would be {}",
                     words(s.reduction), seconds(s.reduction), words(other), seconds(other));
}

}  // namespace piper::plan
