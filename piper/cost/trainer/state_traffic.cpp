#include <piper/cost/trainer/state_traffic.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>

namespace piper::cost {

using strategy::Strategy;

namespace {

double updated_parameters(const Strategy& s, const StageSums& sums) {
  const auto share = [&](double parameters, int64_t size) {
    return parameters / (s.zero >= 1 ? static_cast<double>(size) : 1.0);
  };
  return share(sums.dense_parameters, s.mesh.num_replicas()) +
         share(sums.expert_parameters, s.mesh.edp());
}

// Bytes that are read and written to find the residuals of a share, an element: what it is and was
// told, their distance, which is searched.
constexpr double kWritten = 2 + 1 + 2;  // and an element that is put in: value, place
constexpr double kEncoded = 2 + 2 + 4 + 4 + 4;

}  // namespace

StateTraffic state_traffic(const TrainerContext& context, const Strategy& s,
                           const StageSums& sums) {
  const Rates rates = context.rates.among(s.mesh.world());
  const TrainerProfile& trainer = context.trainer;
  const strategy::RankLayout layout(s);
  constexpr double kWeight = 2;  // bytes
  const auto of = [&](int64_t size, int64_t step, double parameters, double part) -> Reduction {
    const CommTime scatter = rates.all_gather(size, step, parameters * trainer.reduction_bytes);
    if (s.zero == 0) return {.reduce = {2 * scatter.latency, 2 * scatter.transfer}, .gather = {}};
    return {.reduce = scatter, .gather = rates.all_gather(size, step, parameters * kWeight * part)};
  };
  StateTraffic traffic{.dense = of(s.mesh.num_replicas(), layout.distance(strategy::Axis::kData),
                                   sums.dense_parameters, 1),
                       .experts = of(s.mesh.edp(), layout.distance(strategy::Axis::kExpertData),
                                     sums.expert_parameters, strategy::sent_part(s))};
  // With ZeRO 3 weights are gathered for forward and backward of every micro-batch, with ZeRO 2 and
  // more gradients are scattered after each, unless the trainer keeps both whole in a pipeline.
  const bool keeps = s.mesh.pp > 1 && trainer.keeps_weights_in_pipelines;
  const double m = keeps ? 1.0 : static_cast<double>(s.num_micro_batches);
  traffic.reduces = s.zero >= 2 ? m : 1;
  traffic.gathers = s.zero == 3 ? 2 * m : 1;
  return traffic;
}

double update_seconds(const TrainerContext& context, const Strategy& s, const StageSums& sums) {
  // Gradient, two moments and master read and written, weight written.
  constexpr double kTouched = 34;
  const TrainerProfile& trainer = context.trainer;
  const int64_t replicas = s.mesh.num_replicas();
  double seconds = 0, copied = 0;
  if (s.zero >= 1 && replicas > 1) {
    copied = trainer.division_bytes * (sums.dense_parameters + sums.expert_parameters);
    seconds = trainer.division_seconds_per_replica * sums.layers * static_cast<double>(replicas);
  }
  if (strategy::compresses_experts(s))
    copied += sums.expert_parameters *
              (kEncoded / static_cast<double>(s.mesh.edp()) + kWritten * strategy::sent_part(s));
  return seconds + context.rates.pass_seconds(updated_parameters(s, sums) * kTouched + copied);
}

double optimizer_copy_seconds(const TrainerContext& context, const Strategy& s,
                              const StageSums& sums) {
  return strategy::offloads_optimizer(s.offload)
             ? context.rates.host_copy_seconds(updated_parameters(s, sums) *
                                               context.trainer.optimizer_copy_bytes)
             : 0;
}

}  // namespace piper::cost
