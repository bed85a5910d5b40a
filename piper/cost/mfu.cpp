#include <piper/cost/mfu.h>
#include <piper/cost/segment_time.h>
#include <piper/model/count.h>

#include <algorithm>

namespace piper::cost {

double step_flops(const model::Model& model, int64_t sequence, int64_t global_batch_sequences,
                  double kept) {
  model::TokenFlops token = model::token_flops(model, sequence);
  token.routed_experts *= kept;
  return (token.forward() + token.backward()) * static_cast<double>(sequence) *
         static_cast<double>(global_batch_sequences);
}

double kept_part(const model::Model& model, const strategy::Strategy& strategy) {
  double chosen = 0, kept = 0;
  for (const model::Layer& layer : model.layers) {
    const model::FeedForward& f = layer.feed_forward;
    if (!f.is_moe()) continue;
    const auto copies = static_cast<double>(strategy.sequence * f.top_k);
    const int64_t capacity = strategy::expert_capacity(strategy.capacity.factor, strategy.sequence,
                                                       f.top_k, f.num_experts);
    chosen += copies;
    kept += std::min(copies, static_cast<double>(f.num_experts * capacity));
  }
  return chosen > 0 ? kept / chosen : 1;
}

int64_t num_computing(const cluster::Cluster& cluster, int64_t world) {
  if (cluster.cores_per_node == 0) return world;
  const int64_t node = cluster.devices_per_node();
  return world / node * std::min(node, cluster.cores_per_node) +
         std::min(world % node, cluster.cores_per_node);
}

double peak_flops_per_second(const cluster::Cluster& cluster, strategy::Precision precision,
                             int64_t world) {
  return compute_of(cluster, precision).peak_flops_per_second *
         static_cast<double>(num_computing(cluster, world));
}

double mfu(const model::Model& model, const strategy::Strategy& s, const cluster::Cluster& cluster,
           double step_seconds, std::optional<double> kept) {
  const double peak = peak_flops_per_second(cluster, s.precision, s.mesh.world());
  if (peak <= 0 || step_seconds <= 0) return 0;
  return step_flops(model, s.sequence, s.global_batch_sequences,
                    kept.value_or(kept_part(model, s))) /
         (step_seconds * peak);
}

EffectiveMfu effective_mfu(const cluster::Cluster& cluster, strategy::Precision precision,
                           int64_t world, double flops, double compute_seconds,
                           double step_seconds) {
  const cluster::Compute& compute = compute_of(cluster, precision);
  double efficiency =
      compute.gemm_efficiency > 0 ? compute.gemm_efficiency : kAssumedGemmEfficiency;
  if (!compute.gemm.empty())
    efficiency = std::ranges::max(compute.gemm.rate) / compute.peak_flops_per_second;
  EffectiveMfu effective;
  effective.effective_peak_flops_per_second =
      efficiency * peak_flops_per_second(cluster, precision, world);
  if (compute_seconds <= 0 || step_seconds <= 0) return effective;
  effective.hardware_efficiency =
      flops / (effective.effective_peak_flops_per_second * compute_seconds);
  effective.compute_fraction = compute_seconds / step_seconds;
  return effective;
}

}  // namespace piper::cost
