#include <piper/cost/bubble.h>
#include <piper/cost/trainer/stage_memory.h>
#include <piper/strategy/residual_code.h>

#include <algorithm>

namespace piper::cost {

using strategy::Strategy;

namespace {

// Activations on the device when the stage holds the most.
double activation_bytes(const Strategy& s, const StrategySums& of, int64_t stage,
                        ScheduleFacts& schedules) {
  const StageSums& sums = of.stages[static_cast<size_t>(stage)];
  const bool is_offloaded = strategy::offloads_activations(s.offload);
  const double on_device =
      is_offloaded ? sums.kept_bytes * schedules.lists(s)[static_cast<size_t>(stage)].held : 0;
  if (!keeps_recomputed(s)) {
    if (is_offloaded) return on_device;
    if (s.mesh.vpp == 1 && !strategy::pairs_take_turns(s))
      return sums.kept_bytes * static_cast<double>(chunk_forwards_in_flight(
                                   s.schedule, s.mesh.pp, 1, stage, s.num_micro_batches));
  }
  const double layers = std::max(1.0, sums.layers);
  double most = 0, most_again = 0;
  for (const ChunksHeld& moment : schedules.held(s)[static_cast<size_t>(stage)]) {
    double kept = moment.is_in_pair ? sums.kept_bytes / layers : 0;
    double again = moment.is_in_pair ? sums.dropped_bytes / layers : 0;
    if (moment.ends_input_part) again -= sums.dropped_bytes / layers;  // in `working`
    size_t i = 0;
    for_each_chunk(s, stage, [&](int64_t chunk) {
      const ChunkBytes& bytes = of.of_chunk[static_cast<size_t>(chunk)];
      kept += static_cast<double>(moment.forwards[i]) * bytes.kept;
      again += static_cast<double>(moment.waiting[i++]) * bytes.dropped;
    });
    most_again = std::max(most_again, again);
    most = std::max(most, kept + again);
  }
  return is_offloaded ? on_device + most_again : most;
}

}  // namespace

StageBytes stage_bytes(const TrainerContext& context, const Strategy& s, const StrategySums& of,
                       int64_t stage, ScheduleFacts& schedules) {
  const TrainerProfile& trainer = context.trainer;
  const StageSums& sums = of.stages[static_cast<size_t>(stage)];
  const auto dp = static_cast<double>(s.mesh.num_replicas());
  const auto edp = static_cast<double>(s.mesh.edp());
  const bool keeps_weights = s.zero == 3 && s.mesh.pp > 1 && trainer.keeps_weights_in_pipelines;
  const DividedState& bytes =
      keeps_weights ? trainer.state_zero3_pipelined : trainer.state[static_cast<size_t>(s.zero)];
  StageBytes b;
  const bool away = strategy::offloads_optimizer(s.offload);
  constexpr double kOptimizer = 12;  // master copy and two moments: what may live with the host
  constexpr double kWeightsAndGradients = 6;
  const auto held = [&](double parameters, double replicas) {
    if (replicas <= 1) {
      b.weights_and_gradients += parameters * std::min(trainer.state_alone, kWeightsAndGradients);
      if (!away)
        b.optimizer += parameters * std::max(trainer.state_alone - kWeightsAndGradients, 0.0);
      return;
    }
    const double whole = away ? std::max(bytes.replicated - kOptimizer,
                                         std::min(bytes.replicated, kWeightsAndGradients))
                              : bytes.replicated;
    const bool leaves_rest = away && bytes.sharded >= kOptimizer;
    const double divided = leaves_rest ? bytes.sharded - kOptimizer : bytes.sharded;
    // What every replica holds is the optimizer's, too, where nothing is divided; what they divide
    // is also of weights and gradients under ZeRO 2 and 3.
    const double optimizer_whole = std::max(whole - kWeightsAndGradients, 0.0);
    const double optimizer_divided = leaves_rest ? 0 : std::min(divided, kOptimizer);
    b.weights_and_gradients += parameters * (whole - optimizer_whole) +
                               parameters * (divided - optimizer_divided) / replicas;
    b.optimizer += parameters * optimizer_whole + parameters * optimizer_divided / replicas;
  };
  held(sums.dense_parameters, dp);
  held(sums.expert_parameters, edp);
  if (strategy::compresses_experts(s))  // its share as it is, beside what all were told
    b.weights_and_gradients += 2 * sums.expert_parameters / edp;
  if (s.mesh.tp > 1)
    b.working += trainer.gathered_buffers * 2 *
                 static_cast<double>(s.micro_batch_sequences * s.sequence * context.model.hidden) /
                 static_cast<double>(s.mesh.cp);
  if (s.zero == 3 && !keeps_weights && sums.layers > 0)  // two layers' weights are whole at a time
    b.working += 2 * 2 * (sums.dense_parameters + sums.expert_parameters) / sums.layers;
  b.activations = activation_bytes(s, of, stage, schedules);
  b.working += sums.placeholder_bytes +
               std::max(sums.head_bytes, sums.backward_bytes + sums.head_placeholder_bytes);
  b.exchange = sums.exchange_bytes;
  b.fixed = trainer.fixed_bytes;
  return b;
}

}  // namespace piper::cost
