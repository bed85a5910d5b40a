#include <ATen/Parallel.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/executor/cores.h>
#include <piper/train/batches.h>
#include <piper/train/evaluate.h>
#include <piper/train/prediction.h>

#include <algorithm>

namespace piper::train {

strategy::Strategy in_wide_batches(strategy::Strategy s, int64_t num_windows) {
  if (s.mesh.world() > 1 || s.capacity.is_limited()) return s;
  constexpr int64_t kTokens = 2048;
  s.micro_batch_sequences =
      std::clamp<int64_t>(num_windows, 1, std::max<int64_t>(1, kTokens / s.sequence));
  s.num_micro_batches = 1;
  s.global_batch_sequences = s.micro_batch_sequences;
  return s;
}

LossSum evaluate_windows(RankTrainer& trainer, const data::Corpus& corpus,
                         const strategy::Strategy& strategy, int64_t max_windows,
                         int64_t first_number,
                         const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t all = num_windows(corpus, strategy.sequence);
  const int64_t windows = max_windows > 0 ? std::min(max_windows, all) : all;
  const BatchSource batches = [&](int64_t batch, int64_t dp, int64_t micro_batch) {
    return validation_batch(corpus, strategy, windows, batch, dp, micro_batch);
  };
  const int64_t at_once = strategy.global_batch_sequences;
  LossSum sums;
  for (int64_t batch = 0; batch * at_once < windows; ++batch) {
    const LossSum more = trainer.evaluate(first_number + batch, batches, batch);
    sums.loss += more.loss;
    sums.target_tokens += more.target_tokens;
    if (progress) progress(std::min(windows, (batch + 1) * at_once), windows);
  }
  return sums;
}

Evaluation evaluate_on_mesh(comm::World& world, const model::Model& model,
                            const strategy::Strategy& strategy,
                            const checkpoint::WeightFolder& weights, const data::Corpus& corpus,
                            int64_t max_windows, const RankDevices& devices,
                            const std::function<void(int64_t, int64_t)>& progress) {
  const schedule::StepGraph forwards = checked_evaluation(model, strategy);
  RunShared shared{model, strategy, forwards, {}, {}};
  shared.evaluation = &forwards;
  shared.evaluates_only = true;
  shared.devices = devices;
  shared.offers = std::make_shared<comm::DeviceOffers>(world.local_ranks());
  executor::Cores cores(std::ssize(executor::allowed_cpus()));
  LossSum sums;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    if (world.size() > 1) at::set_num_threads(1);
    RankTrainer trainer(shared, transport, cores);
    checkpoint::load_weights(weights, trainer.stage().named_pieces(), model.tied_embeddings);
    const LossSum of_mesh = evaluate_windows(trainer, corpus, strategy, max_windows, 1,
                                             transport.rank() == Rank(0) ? progress : nullptr);
    if (transport.rank() == world.local_ranks().front()) sums = of_mesh;
  });
  return {sums.loss / std::max(1.0, sums.target_tokens), static_cast<int64_t>(sums.target_tokens)};
}

}  // namespace piper::train
