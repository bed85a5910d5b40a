#include <ATen/Parallel.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/executor/cores.h>
#include <piper/train/batches.h>
#include <piper/train/evaluate.h>
#include <piper/train/prediction.h>

#include <algorithm>

namespace piper::train {

strategy::Strategy one_rank(const model::Model& model, int64_t sequence, int64_t sequences,
                            strategy::Precision precision) {
  strategy::Strategy s;
  s.model = model.name;
  s.layers_per_stage = {model.num_layers()};
  s.precision = precision;
  s.sequence = sequence;
  s.global_batch_sequences = s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  return s;
}

at::Tensor forward_all(nn::Stage& stage, const model::Model& model, const at::Tensor& tokens_BS) {
  const int64_t sequence = tokens_BS.size(1);
  at::Tensor x_TD = stage.embedding_forward(tokens_BS);
  for (int32_t layer = 0; layer < model.num_layers(); ++layer) {
    at::Tensor x1_TD = stage.attention_forward(layer, x_TD, sequence, nullptr);
    if (!model.layers[static_cast<size_t>(layer)].feed_forward.is_moe()) {
      x_TD = stage.dense_mlp_forward(layer, x1_TD, nullptr);
      continue;
    }
    nn::Routing routing;
    const at::Tensor rows = stage.gate_forward(layer, x1_TD, sequence, routing, nullptr);
    const at::Tensor out = stage.experts_forward(layer, rows, routing, nullptr);
    if (model.layers[static_cast<size_t>(layer)].feed_forward.has_shared())
      x1_TD = stage.shared_forward(layer, x1_TD, nullptr);
    x_TD = stage.merge_forward(layer, out, routing, x1_TD);
  }
  return x_TD;
}

Evaluation evaluate(nn::Stage& stage, const model::Model& model, const data::Corpus& corpus,
                    int64_t sequence, int64_t max_windows,
                    const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t all = num_windows(corpus, sequence);
  const int64_t num_windows = max_windows > 0 ? std::min(max_windows, all) : all;
  const int64_t at_once = std::max<int64_t>(1, 2048 / sequence);
  for (int64_t first = 0; first < num_windows; first += at_once) {
    const int64_t count = std::min(at_once, num_windows - first);
    const Batch batch = evaluation_batch(corpus, sequence, first, count);
    const at::Device device = stage.parameters().front().value.device();
    stage.head_forward(forward_all(stage, model, batch.tokens_BS.to(device)),
                       batch.targets_T.to(device), nullptr);
    if (progress) progress(first + count, num_windows);
  }
  const nn::StageStatistics sums = stage.take_statistics();
  return {sums.loss_sum / static_cast<double>(std::max<int64_t>(1, sums.target_tokens)),
          sums.target_tokens};
}

LossSum evaluate_windows(RankTrainer& trainer, const data::Corpus& corpus,
                         const strategy::Strategy& strategy, int64_t max_windows,
                         int64_t first_number,
                         const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t all = num_windows(corpus, strategy.sequence);
  const int64_t windows = max_windows > 0 ? std::min(max_windows, all) : all;
  const BatchSource batches = [&](int64_t batch, int64_t dp, int64_t micro_batch) {
    Batch rows = validation_batch(corpus, strategy, windows, batch, dp, micro_batch);
    return executor::MicroBatch{std::move(rows.tokens_BS), std::move(rows.targets_T)};
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
                            int64_t max_windows, const std::vector<at::Device>& devices,
                            const std::function<void(int64_t, int64_t)>& progress) {
  const schedule::StepGraph forwards = checked_evaluation(model, strategy);
  RunShared shared{model, strategy, forwards, {}, {}};
  shared.evaluation = &forwards;
  shared.evaluates_only = true;
  shared.devices = devices;
  executor::Cores cores(std::ssize(executor::allowed_cpus()));
  LossSum sums;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    at::set_num_threads(1);
    RankTrainer trainer(shared, transport, cores);
    checkpoint::load_weights(weights, trainer.stage().named_pieces(), model.tied_embeddings);
    const LossSum of_mesh = evaluate_windows(trainer, corpus, strategy, max_windows, 1,
                                             transport.rank() == Rank(0) ? progress : nullptr);
    if (transport.rank() == world.local_ranks().front()) sums = of_mesh;
  });
  return {sums.loss / std::max(1.0, sums.target_tokens), static_cast<int64_t>(sums.target_tokens)};
}

}  // namespace piper::train
