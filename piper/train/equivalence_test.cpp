// The central claim of the runtime: whatever the mesh, the schedule and the recomputation, training is the same as on
// one rank. fp64, 20 steps of AdamW with clipping and auxiliary loss; every parameter compared under its own name.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/comm/local.h>
#include <piper/schedule/step.h>
#include <piper/train/rank_trainer.h>

#include <map>
#include <mutex>
#include <span>
#include <string>

using namespace piper;
using strategy::PipelineSchedule;
using strategy::Recompute;

namespace {

constexpr int64_t kVocabulary = 32, kSequence = 8, kGlobalBatch = 16, kNumSteps = 20;

model::Model small_model() {
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

strategy::Strategy strategy_for(const model::Model& model, strategy::Mesh mesh,
                                PipelineSchedule schedule, Recompute recompute,
                                strategy::Precision precision) {
  strategy::Strategy s;
  s.model = model.name;
  s.mesh = mesh;
  s.layers_per_stage = strategy::even_split(model.num_layers(), mesh.pp);
  s.schedule = schedule;
  s.recompute = recompute;
  s.precision = precision;
  s.sequence = kSequence;
  s.global_batch_sequences = kGlobalBatch;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = kGlobalBatch / mesh.dp;
  s.mtp_depth = model.mtp_depth;
  return s;
}

// A fixed function of (step, sequence of the global batch): every mesh sees the same tokens.
runtime::MicroBatch batch(const strategy::Strategy& s, int64_t step, int64_t dp,
                          int64_t micro_batch) {
  const int64_t first = (dp * s.num_micro_batches + micro_batch) * s.micro_batch_sequences;
  auto tokens = at::empty({s.micro_batch_sequences, s.sequence + 1}, at::kLong);
  for (int64_t b = 0; b < s.micro_batch_sequences; ++b)
    for (int64_t t = 0; t <= s.sequence; ++t)
      tokens[b][t] = ((first + b) * 7 + step * 13 + t * t * (1 + (first + b) % 3)) % kVocabulary;
  return {tokens.slice(1, 0, s.sequence).contiguous(),
          tokens.slice(1, 1).reshape({-1}).contiguous()};
}

struct Trained {
  std::map<std::string, at::Tensor> values, gradients;
  std::vector<double> losses, norms, mtp_losses;
  double imbalance = 0, dropped = 0;  // the most of a step; summed over the steps
  double z_loss = 0;                  // of the last step
};

Trained run_training(const model::Model& model, const strategy::Strategy& s, int64_t num_steps,
                     const std::function<void(nn::Stage&)>& prepare = {}, double mtp_weight = 0.3,
                     const collective::Topology& nodes = collective::apart(1)) {
  REQUIRE(strategy::contradictions(s, model).empty());
  const schedule::StepGraph step = schedule::write_step(model, s);
  REQUIRE(graph::validate(step.graph).empty());
  REQUIRE(graph::find_deadlock(step.graph) == "");
  train::RunShared shared{model, s, step, {}, {}};
  if (collective::num_members(nodes) == s.mesh.world()) shared.topology = nodes;
  shared.options.learning_rate = {
      .peak = 1e-2, .minimum = 1e-3, .warmup_steps = 3, .total_steps = kNumSteps};
  shared.options.timeout_seconds = 20;
  shared.options.mtp_weight = mtp_weight;
  shared.batches = [&](int64_t number, int64_t dp, int64_t micro) {
    return batch(s, number, dp, micro);
  };
  comm::LocalWorld world(s.mesh.world());
  runtime::Cores cores(2);
  Trained result;
  std::mutex mutex;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    at::set_num_threads(1);
    train::RankTrainer trainer(shared, transport, cores);
    if (prepare) prepare(trainer.stage());
    std::vector<double> losses, norms, mtp_losses;
    double imbalance = 0, dropped = 0, z_loss = 0;
    for (int64_t number = 1; number <= num_steps; ++number) {
      const train::StepOutcome outcome = trainer.step(number);
      CHECK_FALSE(outcome.skipped);
      losses.push_back(outcome.loss);
      norms.push_back(outcome.grad_norm);
      mtp_losses.push_back(outcome.mtp_loss);
      imbalance = std::max(imbalance, outcome.load_imbalance);
      dropped += outcome.dropped_fraction.value_or(0);
      z_loss = outcome.z_loss;
    }
    const std::lock_guard lock(mutex);
    for (const nn::NamedPiece& piece : trainer.stage().named_pieces()) {
      result.values[piece.name] = piece.value.clone();
      result.gradients[piece.name] = piece.gradient.clone();
    }
    if (transport.rank() == Rank(0)) {
      result.losses = losses, result.norms = norms, result.mtp_losses = mtp_losses;
      result.imbalance = imbalance, result.dropped = dropped, result.z_loss = z_loss;
    }
  });
  return result;
}

double largest_difference(const std::map<std::string, at::Tensor>& a,
                          const std::map<std::string, at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (const auto& [name, value] : a)
    largest = std::max(largest, (value - b.at(name)).abs().max().item<double>());
  return largest;
}

// Latent attention with yarn, sigmoid scores with a bias in groups, shared experts; and Qwen2's gate and biases.
model::Model deepseek_like() {
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

model::Model qwen2_like() {
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

const strategy::Mesh kMeshes[] = {{1, 1, 2}, {1, 1, 8}, {1, 2, 2}, {1, 2, 4}, {1, 4, 4},
                                  {1, 4, 8}, {2, 1, 1}, {2, 1, 4}, {2, 2, 2}, {2, 2, 4},
                                  {2, 4, 4}, {4, 1, 1}, {4, 1, 2}, {4, 2, 2}};

void check_meshes(std::span<const strategy::Mesh> meshes, const model::Model& model,
                  const std::function<void(nn::Stage&)>& prepare) {
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone,
                                strategy::Precision::kFp64);
  const Trained reference = run_training(model, one, kNumSteps, prepare);
  CHECK(reference.losses.back() < reference.losses.front() - 0.3);
  size_t num_runs = 0;
  for (const strategy::Mesh& mesh : meshes)
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
      // Every form of recomputation in turn.
      const Recompute recompute = strategy::kRecomputes[num_runs++ % strategy::kRecomputes.size()];
      const Trained sharded = run_training(
          model, strategy_for(model, mesh, schedule, recompute, strategy::Precision::kFp64),
          kNumSteps, prepare);
      const double difference = largest_difference(reference.values, sharded.values);
      CHECK_MESSAGE(difference <= 1e-9,
                    fmt::format("pp {} ep {} dp {} {} recompute {}: {}", mesh.pp, mesh.ep, mesh.dp,
                                strategy::name(schedule), strategy::name(recompute), difference));
      CHECK(std::abs(reference.losses.back() - sharded.losses.back()) < 1e-9);
      CHECK(std::abs(reference.norms.back() - sharded.norms.back()) < 1e-9);
      CHECK(std::abs(reference.mtp_losses.back() - sharded.mtp_losses.back()) < 1e-9);
    }
}

void check_all_meshes(const model::Model& model, const std::function<void(nn::Stage&)>& prepare) {
  check_meshes(kMeshes, model, prepare);
}

}  // namespace

TEST_CASE("latent attention, shared experts and biased gates shard as the plain ones do") {
  const strategy::Mesh meshes[] = {{1, 2, 2}, {1, 4, 4}, {2, 1, 2}, {2, 2, 4}, {4, 2, 2}};
  // The bias that chooses is not zero in a trained model.
  const auto bias = [](nn::Stage& stage) {
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("e_score_correction_bias") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).copy_(at::tensor({0.2, -0.1, 0.05, 0.3}));
  };
  check_meshes(meshes, deepseek_like(), bias);
  check_meshes(meshes, qwen2_like(), {});
}

TEST_CASE("modules of multi-token prediction shard as the model does, and learn") {
  const strategy::Mesh meshes[] = {{1, 2, 2}, {2, 1, 1}, {2, 2, 2}};
  model::Model tied = small_model();
  tied.tied_embeddings = true;
  for (const model::Model& model :
       {model::with_mtp(deepseek_like(), 2), model::with_mtp(tied, 1)}) {
    check_meshes(meshes, model, {});
    const Trained one = run_training(model,
                                     strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe,
                                                  Recompute::kFull, strategy::Precision::kFp64),
                                     kNumSteps);
    CHECK(one.mtp_losses.back() < one.mtp_losses.front() - 0.15);
  }
}

TEST_CASE("modules that count nothing leave every loss, gradient and parameter as it is") {
  const model::Model plain = small_model(), model = model::with_mtp(plain, 2);
  const auto train = [](const model::Model& m, strategy::Mesh mesh) {
    return run_training(m,
                        strategy_for(m, mesh, PipelineSchedule::k1F1B, Recompute::kNone,
                                     strategy::Precision::kFp64),
                        5, {}, 0);
  };
  for (const strategy::Mesh mesh : {strategy::Mesh{1, 1, 1}, {2, 2, 2}}) {
    const Trained without = train(plain, mesh), with = train(model, mesh);
    CHECK(with.losses == without.losses);
    CHECK(with.norms == without.norms);
    for (const auto& [name, value] : without.values) {
      CAPTURE(name);
      CHECK(at::equal(value, with.values.at(name)));
    }
  }
}

TEST_CASE("sharded training equals unsharded training on every mesh and schedule, in fp64") {
  check_all_meshes(small_model(), {});
}

TEST_CASE("sharded equals unsharded with experts that get no token and one that gets many") {
  // A router of zeros ties all experts: the same two win every token, the others get none.
  const auto tie = [](nn::Stage& stage) {
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("mlp.gate.weight") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).zero_();
  };
  const model::Model model = small_model();
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::k1F1B, Recompute::kNone,
                                strategy::Precision::kFp64);
  CHECK(run_training(model, one, 1, tie).imbalance ==
        doctest::Approx(2.0));  // 2 of 4 experts take everything
  check_all_meshes(model, tie);
}

TEST_CASE(
    "what a capacity drops, and the z-loss, depend on no mesh, schedule, recomputation or "
    "micro-batch") {
  model::Model model = small_model();
  model.router_z_coefficient = 0.01;
  struct Split {
    strategy::Mesh mesh;
    PipelineSchedule schedule;
    Recompute recompute;
    int64_t micro_batch;
  };
  const Split splits[] = {{{1, 1, 1}, PipelineSchedule::k1F1B, Recompute::kFull, 4},
                          {{1, 2, 4}, PipelineSchedule::k1F1B, Recompute::kNone, 1},
                          {{1, 4, 4}, PipelineSchedule::kGPipe, Recompute::kFull, 2},
                          {{2, 2, 2}, PipelineSchedule::k1F1B, Recompute::kFull, 1},
                          {{2, 4, 4}, PipelineSchedule::kGPipe, Recompute::kNone, 2},
                          {{4, 1, 2}, PipelineSchedule::k1F1B, Recompute::kNone, 4}};
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const auto train = [&](const Split& split) {
      strategy::Strategy s = strategy_for(model, split.mesh, split.schedule, split.recompute,
                                          strategy::Precision::kFp64);
      s.micro_batch_sequences = split.micro_batch;
      s.num_micro_batches /= split.micro_batch;
      s.capacity = {.factor = 1, .drop = drop};
      return run_training(model, s, kNumSteps);
    };
    const Trained reference = train({{1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone, 1});
    CHECK(reference.losses.back() < reference.losses.front() - 0.3);
    CHECK(reference.dropped > 0.05 * kNumSteps);
    CHECK(reference.z_loss > 0);
    for (const Split& split : splits) {
      INFO("pp ", split.mesh.pp, " ep ", split.mesh.ep, " dp ", split.mesh.dp, " drop ",
           std::string(strategy::name(drop)));
      const Trained sharded = train(split);
      CHECK(largest_difference(reference.values, sharded.values) <= 1e-9);
      CHECK(std::abs(reference.losses.back() - sharded.losses.back()) < 1e-9);
      CHECK(reference.dropped == sharded.dropped);
      CHECK(std::abs(reference.z_loss - sharded.z_loss) < 1e-9);
    }
  }
}

TEST_CASE("whichever way the rows travel, training is the same to the bit") {
  const model::Model model = small_model();
  const auto strategy = [&](strategy::AllToAll algorithm) {
    strategy::Strategy s = strategy_for(model, {.pp = 2, .ep = 4, .dp = 4}, PipelineSchedule::k1F1B,
                                        Recompute::kExperts, strategy::Precision::kFp64);
    s.all_to_all = algorithm;
    s.all_to_all_chunk_bytes = 192;  // a row and a half
    return s;
  };
  // Expert groups over two nodes of two ranks, and over nodes of three ranks and one.
  for (const collective::Topology& nodes :
       {collective::even_nodes(4, 2, 2), collective::Topology{{{0, 0, 0, 1, 1, 2, 2, 2}}, {}},
        collective::even_nodes(8, 1, 1, 2)}) {
    const Trained plain = run_training(model, strategy(strategy::AllToAll::kFlat), 3, {}, 0, nodes);
    for (const strategy::AllToAll algorithm : strategy::kAllToAlls) {
      CAPTURE(strategy::name(algorithm));
      const Trained other = run_training(model, strategy(algorithm), 3, {}, 0, nodes);
      CHECK(other.losses == plain.losses);
      CHECK(largest_difference(other.values, plain.values) == 0);
      CHECK(largest_difference(other.gradients, plain.gradients) == 0);
    }
  }
}

// Sums are taken in another order (in the node first, then over nodes), so training is equal but for rounding.
TEST_CASE("tokens that cross once and are weighted at their experts train as one rank does") {
  struct Case {
    strategy::Mesh mesh;
    Recompute recompute;
    collective::Topology nodes;
    int64_t chunk_bytes = 0;
  };
  const Case cases[] = {
      {{1, 4, 4}, Recompute::kNone, collective::even_nodes(2, 2)},
      {{1, 4, 4}, Recompute::kFull, collective::even_nodes(1, 4)},     // one node
      {{1, 4, 4}, Recompute::kExperts, collective::even_nodes(4, 1)},  // a node each
      {{1, 4, 4}, Recompute::kAttention, {{{0, 0, 0, 1}}, {}}, 300},   // uneven nodes, pieces
      {{2, 4, 4}, Recompute::kAttentionAndExperts, collective::even_nodes(4, 2, 2), 128},
      {{1, 4, 8}, Recompute::kFull, {{{0, 0, 1, 1, 2, 0, 2, 2}}, {}}},
      {{2, 2, 2}, Recompute::kFull, collective::even_nodes(2, 2)},
      {{1, 1, 2}, Recompute::kNone, collective::even_nodes(2, 1)},  // no exchange at all
  };
  const auto tie = [](nn::Stage& stage) {  // two experts win every token, the others get none
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("mlp.gate.weight") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).zero_();
  };
  model::Model three = small_model();
  for (model::Layer& layer : three.layers)
    if (layer.feed_forward.is_moe()) layer.feed_forward.top_k = 3;
  struct Trial {
    model::Model model;
    std::function<void(nn::Stage&)> prepare;
    double capacity = 0;
  };
  const Trial trials[] = {{three, {}},
                          {small_model(), tie},
                          {model::with_mtp(deepseek_like(), 1), {}},
                          {qwen2_like(), {}, 1}};
  for (const Trial& trial : trials) {
    const auto strategy = [&](const Case& c) {
      strategy::Strategy s = strategy_for(trial.model, c.mesh, PipelineSchedule::k1F1B, c.recompute,
                                          strategy::Precision::kFp64);
      s.all_to_all = strategy::AllToAll::kHaloDedup;
      s.all_to_all_chunk_bytes = c.chunk_bytes;
      s.capacity.factor = trial.capacity;
      return s;
    };
    const Trained one =
        run_training(trial.model, strategy({{1, 1, 1}, Recompute::kNone, collective::apart(1)}),
                     kNumSteps, trial.prepare);
    CHECK(one.losses.back() < one.losses.front() - 0.3);
    if (trial.capacity > 0) CHECK(one.dropped > 0);
    for (const Case& c : cases) {
      const Trained other =
          run_training(trial.model, strategy(c), kNumSteps, trial.prepare, 0.3, c.nodes);
      const double difference = largest_difference(one.values, other.values);
      CHECK_MESSAGE(
          difference <= 1e-9,
          fmt::format("{} pp {} ep {} dp {} recompute {}: {}", trial.model.name, c.mesh.pp,
                      c.mesh.ep, c.mesh.dp, strategy::name(c.recompute), difference));
      CHECK(std::abs(one.losses.back() - other.losses.back()) < 1e-9);
      CHECK(std::abs(one.norms.back() - other.norms.back()) < 1e-9);
      CHECK(std::abs(one.mtp_losses.back() - other.mtp_losses.back()) < 1e-9);
    }
  }
}

TEST_CASE("tied embeddings on two ends of a pipeline stay equal and count once") {
  model::Model model = small_model();
  model.tied_embeddings = true;
  check_all_meshes(model, {});
}

TEST_CASE("in fp32 the first step's gradients agree within 1e-5 of each tensor's norm") {
  const model::Model model = small_model();
  const auto one = strategy_for(model, {1, 1, 1}, PipelineSchedule::kGPipe, Recompute::kNone,
                                strategy::Precision::kFp32);
  const Trained reference = run_training(model, one, 1);
  for (const strategy::Mesh& mesh : kMeshes) {
    const Trained sharded = run_training(model,
                                         strategy_for(model, mesh, PipelineSchedule::k1F1B,
                                                      Recompute::kNone, strategy::Precision::kFp32),
                                         1);
    for (const auto& [name, gradient] : reference.gradients) {
      const double norm = gradient.norm().item<double>();
      const double difference = (gradient - sharded.gradients.at(name)).norm().item<double>();
      CHECK_MESSAGE(difference <= 1e-5 * norm,
                    fmt::format("{} on pp {} ep {} dp {}: {} of {}", name, mesh.pp, mesh.ep,
                                mesh.dp, difference, norm));
    }
  }
}

TEST_CASE("the same run twice gives the same bits") {
  const model::Model model = small_model();
  const auto s = strategy_for(model, {2, 2, 2}, PipelineSchedule::k1F1B, Recompute::kNone,
                              strategy::Precision::kFp32);
  const Trained first = run_training(model, s, 5), second = run_training(model, s, 5);
  for (const auto& [name, value] : first.values) CHECK(at::equal(value, second.values.at(name)));
  CHECK(first.losses == second.losses);
}
