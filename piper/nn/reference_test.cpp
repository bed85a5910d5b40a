#include <doctest/doctest.h>
#include <testing/nn/whole_step.h>

#include <cmath>
#include <numeric>

namespace piper::nn {
namespace {

using namespace testing;

struct Pair {
  NamedTensors stage, reference;
  RoutingMargin margin;
  StageStatistics statistics;
  ReferenceResult forward;
};

// Gradients of one batch by the segments and by the reference, in fp64. `edit` may change the
// weights first.
template <class Edit>
Pair both(const model::Model& model, const Batch& batch, Edit edit,
          const strategy::Capacity& capacity = {}) {
  const int64_t sequences = batch.tokens_BS.size(0), sequence = batch.tokens_BS.size(1);
  const StageOptions options{.dtype = at::kDouble,
                             .seed = 3,
                             .global_sequences = sequences,
                             .global_target_tokens = num_targets(batch),
                             .mtp_weight = 0.7,
                             .mtp_target_tokens = num_mtp_targets(model, batch)};
  strategy::Strategy strategy = tiny_strategy(model, 1, 1, sequence);
  strategy.capacity = capacity;
  const auto stage = make_stage(model, strategy, Rank(0), options);
  edit(*stage);
  stage->zero_gradients();
  const RoutingMargin margin = run_step(model, {stage.get()}, {batch}, capacity);
  const NamedTensors weights = values(*stage);
  return {gradients(*stage),
          reference_gradients(model, weights, batch.tokens_BS, batch.targets_T,
                              options.global_target_tokens, sequences, capacity, options.mtp_weight,
                              options.mtp_target_tokens),
          margin, stage->take_statistics(),
          reference_forward(model, weights, batch.tokens_BS, batch.targets_T, capacity)};
}

template <class Edit>
Pair both(const model::Model& model, int64_t sequences, int64_t sequence, Edit edit,
          const strategy::Capacity& capacity = {}) {
  return both(model, random_batch(model, sequences, sequence, 7), edit, capacity);
}

constexpr auto kAsInitialised = [](Stage&) {};

// Runs the first batch whose routing does not hang on rounding. Its sequences begin with one token
// three times, whose weights are equal but for rounding.
Pair clear_pair(const model::Model& model, int64_t sequences, int64_t sequence,
                const strategy::Capacity& capacity) {
  for (uint64_t seed = 7; seed < 107; ++seed) {
    const Batch batch = random_batch(model, sequences, sequence, seed);
    batch.tokens_BS.narrow(1, 0, 3).fill_(5);
    Pair pair = both(model, batch, kAsInitialised, capacity);
    if (pair.margin.least() >= kRoutingMargin) return pair;
  }
  FAIL("no batch keeps the margin");
  return {};
}

void check_equal(const Pair& pair) {
  CHECK(pair.statistics.loss_sum ==
        doctest::Approx(pair.forward.token_loss_sum.item<double>()).epsilon(1e-12));
  CHECK(largest_difference(pair.stage, pair.reference) < 1e-9);
  CHECK(largest_difference(pair.reference, pair.stage) < 1e-9);  // the same names on both sides
}

// Norms start as ones, which would hide a forgotten one.
constexpr auto kNormsMoved = [](Stage& stage) {
  for (const NamedPiece& piece : stage.named_pieces())
    if (piece.name.find("norm") != std::string::npos)
      at::Tensor(piece.value)
          .add_(at::cos(at::arange(piece.value.numel(), at::kDouble) * 1.3 +
                        static_cast<double>(piece.name.size())),
                0.3);
};

// Makes the router of every layer prefer `expert` by far, whatever the token.
void prefer(Stage& stage, int64_t expert, int64_t others) {
  for (Parameter& p : stage.parameters()) {
    if (p.name.find("gate.weight") == std::string::npos) continue;
    p.value.zero_();
    p.value.select(0, expert).fill_(1.0);
    for (int64_t e = 0; e < p.value.size(0); ++e)
      if (e != expert)
        p.value.select(0, e).narrow(0, 0, others).fill_(1e-3 * static_cast<double>(e + 1));
  }
}

TEST_CASE("every family's gradients equal autograd of the plain model") {
  for (const std::string family : {"mixtral", "qwen3_moe", "olmoe", "llama"}) {
    CAPTURE(family);
    check_equal(both(tiny_model(family), 2, 9, kAsInitialised));
  }
}

TEST_CASE("tied embeddings add the gradients of both ends") {
  model::Model model = tiny_model("olmoe");
  model.tied_embeddings = true;
  check_equal(both(model, 1, 7, kAsInitialised));
}

TEST_CASE("modules of multi-token prediction: loss and every gradient equal autograd's") {
  for (const std::string family : {"qwen3_moe", "mixtral", "llama"})
    for (const int64_t depth : {1, 3})
      for (const bool tied : {false, true}) {
        CAPTURE(family);
        CAPTURE(depth);
        CAPTURE(tied);
        model::Model plain = tiny_model(family);
        plain.tied_embeddings = tied;
        const model::Model model = with_mtp(plain, depth);
        const Pair pair = both(model, 3, 9, kNormsMoved);
        check_equal(pair);
        const Batch batch = random_batch(model, 3, 9, 7);
        double loss = 0;
        for (int64_t k = 1; k <= depth; ++k)
          loss += pair.forward.mtp_loss_sums[static_cast<size_t>(k - 1)].item<double>() /
                  static_cast<double>(num_targets(batch, k) * depth);
        CHECK(pair.statistics.mtp_loss == doctest::Approx(loss).epsilon(1e-12));
      }
}

TEST_CASE("modules that count nothing leave the model's own gradients as they are") {
  const model::Model plain = tiny_model("mixtral"), model = with_mtp(plain, 2);
  const Batch batch = random_batch(model, 2, 9, 7);
  NamedTensors with, without;
  for (const model::Model* m : {&plain, &model}) {
    const auto stage = make_stage(*m, tiny_strategy(*m, 1, 1, 9), Rank(0),
                                  {.dtype = at::kDouble,
                                   .global_sequences = 2,
                                   .global_target_tokens = num_targets(batch),
                                   .mtp_weight = 0,
                                   .mtp_target_tokens = num_mtp_targets(*m, batch)});
    stage->zero_gradients();
    run_step(*m, {stage.get()}, {batch});
    (m == &plain ? without : with) = gradients(*stage);
  }
  for (const auto& [name, gradient] : without) {
    CAPTURE(name);
    CHECK(at::equal(gradient, with.at(name)));
  }
  CHECK(with.at("model.layers.2.eh_proj.weight").count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("a partly rotated head, no rotation, and one expert a token") {
  model::Model model = tiny_model("mixtral");
  model.rope.partial_factor = 0.7;  // 4 of 6
  model.layers[1].attention.rotary = false;
  model.layers[0].feed_forward.top_k = 1;
  check_equal(both(model, 3, 5, kAsInitialised));
}

TEST_CASE("a dense layer among mixtures") {
  model::Model model = tiny_model("qwen3_moe");
  model.layers[0].feed_forward = {.ffn = 14};
  check_equal(both(model, 1, 11, kAsInitialised));
}

TEST_CASE("experts without a token, one expert with all, every expert chosen") {
  model::Model model = tiny_model("olmoe");
  model.layers[0].feed_forward.top_k = 1;
  model.layers[1].feed_forward.top_k = 6;
  const Pair pair = both(model, 2, 8, [](Stage& stage) { prefer(stage, 4, 5); });
  check_equal(pair);
  const std::vector<int64_t>& counts = pair.statistics.expert_counts.at(0);
  CHECK(*std::max_element(counts.begin(), counts.end()) >= 8);
  CHECK(*std::min_element(counts.begin(), counts.end()) == 0);
  CHECK(pair.statistics.expert_counts.at(1) == std::vector<int64_t>(6, 16));
}

TEST_CASE("the auxiliary loss is the Switch form by sequence") {
  model::Model model = tiny_model("mixtral");
  const Pair pair = both(model, 3, 6, kAsInitialised);
  CHECK(pair.statistics.auxiliary_loss ==
        doctest::Approx(pair.forward.auxiliary_loss.item<double>() / 3));
  // With a perfectly even router f_i = P_i = 1/E, so each layer's and sequence's loss is the
  // coefficient itself; a random router on few tokens lies above.
  CHECK(pair.statistics.auxiliary_loss > 2 * model.router_aux_coefficient);
  model.router_aux_coefficient = 0;
  const Pair none = both(model, 3, 6, kAsInitialised);
  CHECK(none.statistics.auxiliary_loss == 0);
  CHECK(largest_difference(none.stage, pair.stage) > 1e-6);
  check_equal(none);
}

int64_t sum(const std::map<int32_t, std::vector<int64_t>>& by_layer) {
  int64_t sum = 0;
  for (const auto& [layer, counts] : by_layer)
    sum = std::accumulate(counts.begin(), counts.end(), sum);
  return sum;
}

TEST_CASE("with a capacity the gradients equal autograd of the plain model that drops") {
  for (const std::string family : {"mixtral", "olmoe"})  // normalised weights, and not
    for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
      for (const double factor : {0.25, 0.75, 1.25}) {
        CAPTURE(family);
        CAPTURE(factor);
        INFO(std::string(strategy::name(drop)));
        model::Model model = tiny_model(family);
        model.router_z_coefficient = 0.03;
        const Pair pair = clear_pair(model, 3, 9, {.factor = factor, .drop = drop});
        check_equal(pair);
        const StageStatistics& s = pair.statistics;
        CHECK(pair.forward.dropped > 0);
        CHECK(sum(s.expert_counts) - sum(s.expert_rows) == pair.forward.dropped);
        CHECK(s.auxiliary_loss ==
              doctest::Approx(pair.forward.auxiliary_loss.item<double>() / 3).epsilon(1e-12));
      }
}

TEST_CASE("with a capacity: experts without a token, one with all, every expert chosen") {
  model::Model model = tiny_model("olmoe");
  model.layers[0].feed_forward.top_k = 1;
  model.layers[1].feed_forward.top_k = 6;
  const auto prefer_4 = [](Stage& stage) { prefer(stage, 4, 5); };
  const strategy::Capacity half{.factor = 0.5};
  const Pair pair = both(model, 2, 8, prefer_4, half);
  check_equal(pair);
  // ceil(0.5 x 8 / 6) = 1 row of each of 2 sequences, and ceil(0.5 x 8 x 6 / 6) = 4.
  const std::vector<int64_t>& rows = pair.statistics.expert_rows.at(0);
  CHECK(rows[4] == 2);
  CHECK(std::accumulate(rows.begin(), rows.end(), int64_t{0}) < 8);
  CHECK(pair.statistics.expert_counts.at(0) ==
        both(model, 2, 8, prefer_4).statistics.expert_counts.at(0));
  CHECK(pair.statistics.expert_rows.at(1) == std::vector<int64_t>(6, 8));
}

TEST_CASE("a capacity that drops nothing gives the bits of no capacity") {
  for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
    const model::Model model = tiny_model("qwen3_moe");
    const Pair without = both(model, 2, 9, kAsInitialised),
               with = both(model, 2, 9, kAsInitialised, {.factor = 3, .drop = drop});
    CHECK(with.forward.dropped == 0);
    for (const auto& [name, gradient] : without.stage)
      CHECK(at::equal(gradient, with.stage.at(name)));
    CHECK(with.statistics.loss_sum == without.statistics.loss_sum);
  }
}

TEST_CASE("the z-loss is the mean square of the routers' log-sum-exp, by sequence") {
  model::Model model = tiny_model("mixtral");
  model.router_z_coefficient = 0.1;
  const Pair pair = both(model, 3, 6, kAsInitialised);
  check_equal(pair);
  CHECK(pair.statistics.z_loss ==
        doctest::Approx(pair.forward.z_loss.item<double>() / 3).epsilon(1e-12));
  CHECK(pair.statistics.z_loss > 0);
  // Logits of 0: log(6)^2 in each of 2 layers.
  const Pair zero = both(model, 3, 6, [](Stage& stage) {
    for (Parameter& p : stage.parameters())
      if (p.name.find("gate.weight") != std::string::npos) p.value.zero_();
  });
  CHECK(zero.statistics.z_loss == doctest::Approx(2 * 0.1 * std::log(6.0) * std::log(6.0)));
  model.router_z_coefficient = 0;
  const Pair none = both(model, 3, 6, kAsInitialised);
  CHECK(none.statistics.z_loss == 0);
  CHECK(largest_difference(none.stage, pair.stage) > 1e-6);
}

TEST_CASE("the gradient predicts the change of the loss along a random direction") {
  const model::Model model = tiny_model("qwen3_moe");
  const Batch batch = random_batch(model, 2, 9, 7);
  const auto stage = make_stage(
      model, tiny_strategy(model, 1, 1, 9), Rank(0),
      {.dtype = at::kDouble, .global_sequences = 2, .global_target_tokens = num_targets(batch)});
  const auto loss_at = [&](double step, const NamedTensors& direction) {
    for (const NamedPiece& piece : stage->named_pieces())
      at::Tensor(piece.value).add_(direction.at(piece.name), step);
    stage->zero_gradients();
    run_step(model, {stage.get()}, {batch});
    const StageStatistics s = stage->take_statistics();
    return s.loss_sum / static_cast<double>(s.target_tokens) + s.auxiliary_loss;
  };
  NamedTensors direction;
  double slope = 0;
  loss_at(0, values(*stage));
  for (const auto& [name, gradient] : gradients(*stage)) {
    direction[name] =
        at::cos(at::arange(gradient.numel(), at::kDouble) * 1.7 + 0.3).view(gradient.sizes());
    slope += (gradient * direction[name]).sum().item<double>();
  }
  constexpr double kStep = 1e-6;
  const double above = loss_at(kStep, direction), below = loss_at(-2 * kStep, direction);
  CHECK((above - below) / (2 * kStep) == doctest::Approx(slope).epsilon(1e-6));
}

}  // namespace
}  // namespace piper::nn
