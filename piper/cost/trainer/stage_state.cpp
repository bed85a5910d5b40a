#include <piper/cost/trainer/sums.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>

// What the states of a stage (weights, gradients, optimizer) take: bytes, and seconds of reductions
// and update.
namespace piper::cost {

using strategy::Strategy;

StageBytes TrainerEstimator::stage_bytes(const Strategy& s, const StageSums& sums, int64_t stage) {
  const auto dp = static_cast<double>(s.mesh.num_replicas());
  const auto edp = static_cast<double>(s.mesh.edp());
  const bool keeps_weights = s.zero == 3 && s.mesh.pp > 1 && trainer_.keeps_weights_in_pipelines;
  const DividedState& bytes =
      keeps_weights ? trainer_.state_zero3_pipelined : trainer_.state[static_cast<size_t>(s.zero)];
  StageBytes b;
  const bool away = strategy::offloads_optimizer(s.offload);
  constexpr double kOptimizer = 12;  // master copy and two moments: what may live with the host
  const auto held = [&](double parameters, double replicas) {
    if (replicas <= 1) {
      b.weights_and_gradients += parameters * std::min(trainer_.state_alone, 6.0);
      if (!away) b.optimizer += parameters * std::max(trainer_.state_alone - 6.0, 0.0);
      return;
    }
    const double whole =
        away ? std::max(bytes.replicated - kOptimizer, std::min(bytes.replicated, 6.0))
             : bytes.replicated;
    const double divided =
        away && bytes.sharded >= kOptimizer ? bytes.sharded - kOptimizer : bytes.sharded;
    b.weights_and_gradients += parameters * whole;
    b.optimizer += parameters * divided / replicas;
  };
  held(sums.dense_parameters, dp);
  held(sums.expert_parameters, edp);
  if (s.mesh.tp > 1)
    b.working += trainer_.gathered_buffers * 2 *
                 static_cast<double>(s.micro_batch_sequences * s.sequence * model_.hidden) /
                 static_cast<double>(s.mesh.cp);
  if (s.zero == 3 && !keeps_weights && sums.layers > 0)  // two layers' weights are whole at a time
    b.working += 2 * 2 * (sums.dense_parameters + sums.expert_parameters) / sums.layers;
  b.activations = activation_bytes(s, sums, stage);
  b.working += sums.placeholder_bytes +
               std::max(sums.head_bytes, sums.backward_bytes + sums.head_placeholder_bytes);
  b.exchange = sums.exchange_bytes;
  b.fixed = trainer_.fixed_bytes;
  return b;
}

StateTraffic TrainerEstimator::state_traffic(const Strategy& s, const StageSums& sums) const {
  const int64_t replicas = s.mesh.num_replicas(), edp = s.mesh.edp();
  const strategy::RankLayout layout(s);
  const int64_t stride = layout.distance(strategy::Axis::kData),
                expert_stride = layout.distance(strategy::Axis::kExpertData);
  constexpr double kWeight = 2;  // bytes
  const auto of = [&](int64_t size, int64_t step, double parameters) -> Reduction {
    const CommTime scatter = rates_.all_gather(size, step, parameters * trainer_.reduction_bytes);
    if (s.zero == 0) return {.reduce = {2 * scatter.latency, 2 * scatter.transfer}, .gather = {}};
    return {.reduce = scatter, .gather = rates_.all_gather(size, step, parameters * kWeight)};
  };
  StateTraffic traffic{.dense = of(replicas, stride, sums.dense_parameters),
                       .experts = of(edp, expert_stride, sums.expert_parameters)};
  // With ZeRO 3 weights are gathered for forward and backward of every micro-batch, with ZeRO 2 and
  // more gradients are scattered after each, unless the trainer keeps both whole in a pipeline.
  const bool keeps = s.mesh.pp > 1 && trainer_.keeps_weights_in_pipelines;
  const double m = keeps ? 1.0 : static_cast<double>(s.num_micro_batches);
  traffic.reduces = s.zero >= 2 ? m : 1;
  traffic.gathers = s.zero == 3 ? 2 * m : 1;
  return traffic;
}

double TrainerEstimator::updated_parameters(const Strategy& s, const StageSums& sums) const {
  const auto share = [&](double parameters, int64_t size) {
    return parameters / (s.zero >= 1 ? static_cast<double>(size) : 1.0);
  };
  return share(sums.dense_parameters, s.mesh.num_replicas()) +
         share(sums.expert_parameters, s.mesh.edp());
}

double TrainerEstimator::update_seconds(const Strategy& s, const StageSums& sums) const {
  // Gradient, two moments and master read and written, weight written.
  constexpr double kTouched = 34;
  const int64_t replicas = s.mesh.num_replicas();
  double seconds = 0, copied = 0;
  if (s.zero >= 1 && replicas > 1) {
    copied = trainer_.division_bytes * (sums.dense_parameters + sums.expert_parameters);
    seconds = trainer_.division_seconds_per_replica * sums.layers * static_cast<double>(replicas);
  }
  return seconds + rates_.pass_seconds(updated_parameters(s, sums) * kTouched + copied);
}

double TrainerEstimator::optimizer_copy_seconds(const Strategy& s, double parameters) const {
  return strategy::offloads_optimizer(s.offload)
             ? rates_.host_copy_seconds(parameters * trainer_.optimizer_copy_bytes)
             : 0;
}

}  // namespace piper::cost
