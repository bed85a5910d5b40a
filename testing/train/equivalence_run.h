// For tests that a run equals another one: small models, and training in fp64 on the ranks of one
// process.
#pragma once

#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <piper/comm/local.h>
#include <piper/nn/aten.h>
#include <piper/schedule/step.h>
#include <piper/train/rank_trainer.h>
#include <tests/switches.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace piper::train::testing {

using piper::testing::full_counts;
using piper::testing::repetitions;
using strategy::PipelineSchedule;
using strategy::Recompute;

inline constexpr int64_t kVocabulary = 32, kSequence = 8, kGlobalBatch = 16, kAllSteps = 20;
// These are steps of AdamW with a falling learning rate. Sharding that is wrong shows at the first
// step or at the next.
inline int64_t num_steps() { return repetitions({.usual = 3, .full = kAllSteps}); }
// Until the loss has fallen.
inline int64_t steps_to_learn() { return repetitions({.usual = 6, .full = kAllSteps}); }

inline model::Model small_model() {
  model::Model m;
  m.name = "small";
  m.family = "qwen3_moe";
  m.hidden = 16;
  m.vocabulary = kVocabulary;
  m.router_aux_coefficient = 0.02;
  m.initializer_range = 0.2;  // so that gradients are far from zero
  for (int i = 0; i < 4; ++i) {
    model::Layer layer;
    layer.attention.num_heads = 4;
    layer.attention.num_kv_heads = 2;
    layer.attention.head_dim = 8;
    layer.attention.qk_norm = i % 2 ? model::QkNorm::kPerHead : model::QkNorm::kNone;
    layer.feed_forward.ffn = 12;
    if (i != 1) {  // one dense layer among them
      layer.feed_forward.num_experts = 4;
      layer.feed_forward.top_k = 2;
      layer.feed_forward.normalise_top_k = i != 2;
    }
    m.layers.push_back(layer);
  }
  return m;
}

inline strategy::Strategy strategy_for(const model::Model& model, strategy::Mesh mesh,
                                       PipelineSchedule schedule, Recompute recompute,
                                       strategy::Precision precision) {
  strategy::Strategy s;
  s.model = model.name;
  s.mesh = mesh;
  s.layers_per_stage = strategy::even_split(model.num_layers(), mesh.num_virtual_stages());
  s.schedule = schedule;
  s.recompute = recompute;
  s.precision = precision;
  s.sequence = kSequence;
  s.global_batch_sequences = kGlobalBatch;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = kGlobalBatch / mesh.dp;
  s.mtp_depth = model.mtp_depth;
  s.sequence_parallel = mesh.tp > 1;
  return s;
}

// A fixed function of (step, sequence of the global batch): every mesh sees the same tokens.
inline executor::MicroBatch batch(const strategy::Strategy& s, int64_t step, int64_t dp,
                                  int64_t micro_batch) {
  const int64_t first = (dp * s.num_micro_batches + micro_batch) * s.micro_batch_sequences;
  auto tokens = at::empty({s.micro_batch_sequences, s.sequence + 1}, at::kLong);
  auto* const values = tokens.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < s.micro_batch_sequences; ++b)
    for (int64_t t = 0; t <= s.sequence; ++t)
      values[b * (s.sequence + 1) + t] =
          ((first + b) * 7 + step * 13 + t * t * (1 + (first + b) % 3)) % kVocabulary;
  return {tokens.slice(1, 0, s.sequence).contiguous(),
          tokens.slice(1, 1).reshape({-1}).contiguous()};
}

struct Trained {
  std::map<std::string, at::Tensor> values, gradients;
  std::vector<double> losses, norms, mtp_losses;
  double imbalance = 0, dropped = 0;  // the most of a step; summed over the steps
  double z_loss = 0, auxiliary = 0;   // of the last step
  int64_t host_waits = 0;             // of rank 0 in the last step
};

// Puts a rank's part where it belongs in the whole; NaN where no rank has put anything yet.
inline void place(at::Tensor& whole, const at::Tensor& held,
                  const std::optional<nn::TensorPart>& part) {
  if (!part) {
    whole = held.clone();
    return;
  }
  if (!whole.defined())
    whole = at::full(part->shape, std::numeric_limits<double>::quiet_NaN(), held.options());
  whole.narrow(part->dim, part->first, part->count).copy_(held);
}

// `adjust` changes what the ranks share before they start, `before_step` is called by every rank.
inline Trained run_training(
    const model::Model& model, const strategy::Strategy& s, int64_t num_steps,
    const std::function<void(nn::Stage&)>& prepare = {}, double mtp_weight = 0.3,
    const collective::Topology& nodes = collective::apart(1),
    const std::function<void(RunShared&)>& adjust = {},
    const std::function<void(RankTrainer&, int64_t number)>& before_step = {}) {
  for (const strategy::Contradiction& c : strategy::contradictions(s, model)) FAIL(c.text);
  const schedule::StepGraph step = schedule::write_step(model, s);
  for (const std::string& problem : graph::validate(step.graph)) FAIL(problem);
  REQUIRE(graph::find_deadlock(step.graph) == "");
  RunShared shared{model, s, step, {}, {}};
  if (collective::num_members(nodes) == s.mesh.world()) shared.topology = nodes;
  shared.options.learning_rate = {
      .peak = 1e-2, .minimum = 1e-3, .warmup_steps = 3, .total_steps = kAllSteps};
  shared.options.timeout_seconds = 20;
  shared.options.mtp_weight = mtp_weight;
  shared.batches = [&](int64_t number, int64_t dp, int64_t micro) {
    return batch(s, number, dp, micro);
  };
  if (adjust) adjust(shared);
  comm::LocalWorld world(s.mesh.world());
  executor::Cores cores(2);
  Trained result;
  std::mutex mutex;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    at::set_num_threads(1);
    RankTrainer trainer(shared, transport, cores);
    if (prepare) prepare(trainer.stage());
    std::vector<double> losses, norms, mtp_losses;
    double imbalance = 0, dropped = 0, z_loss = 0, auxiliary = 0;
    int64_t host_waits = 0;
    for (int64_t number = 1; number <= num_steps; ++number) {
      if (before_step) before_step(trainer, number);
      const report::StepOutcome outcome = trainer.step(number);
      CHECK_FALSE(outcome.skipped);
      losses.push_back(outcome.loss);
      norms.push_back(outcome.grad_norm);
      mtp_losses.push_back(outcome.mtp_loss.value_or(0));
      imbalance = std::max(imbalance, outcome.load_imbalance);
      dropped += outcome.dropped_fraction.value_or(0);
      z_loss = outcome.z_loss;
      auxiliary = outcome.auxiliary_loss;
      host_waits = outcome.host_waits.value_or(0);
    }
    trainer.gather_weights(uint64_t{1} << 50);
    const std::lock_guard lock(mutex);
    for (const nn::NamedPiece& piece : trainer.stage().named_pieces()) {
      place(result.values[piece.name], piece.value.cpu(), piece.part);
      if (piece.gradient.storage().data() != nullptr)  // under ZeRO 2 they are given back
        place(result.gradients[piece.name], piece.gradient.cpu(), piece.part);
    }
    if (transport.rank() == Rank(0)) {
      result.losses = losses, result.norms = norms, result.mtp_losses = mtp_losses;
      result.imbalance = imbalance, result.dropped = dropped, result.z_loss = z_loss;
      result.auxiliary = auxiliary, result.host_waits = host_waits;
    }
  });
  return result;
}

// Without it an equal pair of runs says little: gradients are far from zero, and where there are
// steps enough the loss falls. (After three it may not have; equivalence_test.cpp sees it fall.)
inline void check_learned(const Trained& run) {
  for (const double norm : run.norms) CHECK(norm > 0.1);
  if (full_counts()) CHECK(run.losses.back() < run.losses.front() - 0.3);
}

inline double largest_difference(const std::map<std::string, at::Tensor>& a,
                                 const std::map<std::string, at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (const auto& [name, value] : a)
    if (const double difference = (value - b.at(name)).abs().max().item<double>();
        !(difference <= largest))  // also where a part is missing, which is NaN
      largest = difference;
  return largest;
}

// Tensors that are not equal to the last bit.
inline int num_differing(const Trained& a, const Trained& b) {
  REQUIRE(a.values.size() == b.values.size());
  int differing = 0;
  for (const auto& [name, value] : a.values)
    differing += at::equal(value, b.values.at(name)) ? 0 : 1;
  return differing;
}

// Latent attention with yarn, sigmoid scores with a bias in groups, shared experts; and Qwen2's
// gate and biases.
inline model::Model deepseek_like() {
  model::Model m = small_model();
  m.name = "small-latent";
  m.family = "deepseek_v3";
  m.rope = {.interleaved = true,
            .scaling = "yarn",
            .factor = 4,
            .original_positions = 16,
            .mscale = 1,
            .mscale_all_dim = 0.8};
  for (model::Layer& layer : m.layers) {
    layer.attention.kind = model::AttentionKind::kLatent;
    layer.attention.qk_norm = model::QkNorm::kNone;
    layer.attention.num_kv_heads = 4;
    layer.attention.latent = {.query_rank = 12,
                              .key_value_rank = 8,
                              .nope_head_dim = 4,
                              .rope_head_dim = 4,
                              .value_head_dim = 6};
    if (!layer.feed_forward.is_moe()) continue;
    layer.feed_forward.score = model::Score::kSigmoid;
    layer.feed_forward.selection_bias = true;
    layer.feed_forward.num_groups = 2;
    layer.feed_forward.top_groups = 1;
    layer.feed_forward.routed_scaling = 1.5;
    layer.feed_forward.shared_ffn = 10;
  }
  return m;
}

inline model::Model qwen2_like() {
  model::Model m = small_model();
  m.name = "small-gated";
  m.family = "qwen2_moe";
  for (model::Layer& layer : m.layers) {
    layer.attention.qk_norm = model::QkNorm::kNone;
    layer.attention.query_bias = layer.attention.key_bias = layer.attention.value_bias = true;
    if (!layer.feed_forward.is_moe()) continue;
    layer.feed_forward.shared_ffn = 10;
    layer.feed_forward.shared_gate = true;
  }
  return m;
}

}  // namespace piper::train::testing
