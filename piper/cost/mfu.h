// Model FLOPs utilisation: what share of the machine's peak a step turns into the model's own
// arithmetic.
//
//   MFU = FLOPs of the model in one step / (seconds of the step x peak of all devices)
//
// FLOPs of the model: model/count.h, forward + backward = 3 x forward, active experts only, modules
// of multi-token prediction that are trained, nothing for recomputation, nothing for what a
// capacity drops. Peak: the dense peak of every device used; where ranks share cores, of the cores.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <optional>

namespace piper::cost {

inline constexpr const char* kMfuFormula =
    "3 x forward FLOPs of the tokens of one step (active experts, causal attention at half, no "
    "recomputation) / (step seconds x dense peak FLOP/s of all devices)";

// FLOPs of the model in one step, when the routed experts compute the part `kept` of all copies of
// tokens (1 = dropless).
double step_flops(const model::Model& model, int64_t sequence, int64_t global_batch_sequences,
                  double kept = 1);
// What the strategy's capacity keeps of a balanced load, over all mixture layers; 1 without any.
double kept_part(const model::Model& model, const strategy::Strategy& strategy);

// Devices, or cores where fewer than ranks share a node, that compute at a time.
int64_t num_computing(const cluster::Cluster& cluster, int64_t world);
// Dense peak of the devices (or cores) that `world` ranks use.
double peak_flops_per_second(const cluster::Cluster& cluster, strategy::Precision precision,
                             int64_t world);

// kMfuFormula. Throws InvalidInput where the cluster has no figures for the precision. `kept`: of
// step_flops(); kept_part() where none is given.
double mfu(const model::Model& model, const strategy::Strategy& strategy,
           const cluster::Cluster& cluster, double step_seconds,
           std::optional<double> kept = std::nullopt);

// Piper eq. 12 (with ERRATA Piper 5): the peak that GEMMs reach on this device, instead of the peak
// on paper, and the share of the step that computes.
//   MFU_effective = step FLOPs / (effective peak x compute seconds)  x  compute seconds / step seconds
struct EffectiveMfu {
  double effective_peak_flops_per_second = 0;
  double hardware_efficiency = 0;  // first factor
  double compute_fraction = 0;     // second factor
  double mfu() const { return hardware_efficiency * compute_fraction; }
};
EffectiveMfu effective_mfu(const cluster::Cluster& cluster, strategy::Precision precision,
                           int64_t world, double flops, double compute_seconds,
                           double step_seconds);

}  // namespace piper::cost
