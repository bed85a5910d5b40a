#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/model/trainable.h>
#include <testing/nn/whole_step.h>

#include <set>

namespace piper::nn {
namespace {

using namespace testing;

std::unique_ptr<Stage> tiny_stage(const model::Model& model, at::ScalarType dtype = at::kDouble) {
  return make_stage(model, tiny_strategy(model, 1, 1, 8), Rank(0),
                    {.dtype = dtype, .seed = 1, .global_sequences = 2, .global_target_tokens = 10});
}

TEST_CASE("a second batch adds to the gradients, a new step forgets them") {
  const model::Model model = tiny_model("mixtral");
  const auto stage = tiny_stage(model);
  const Batch a = random_batch(model, 1, 8, 1), b = random_batch(model, 1, 8, 2);
  const auto run = [&](const std::vector<Batch>& batches) {
    stage->zero_gradients();
    for (const Batch& batch : batches) run_step(model, {stage.get()}, {batch});
    return gradients(*stage);
  };
  const NamedTensors only_a = run({a}), only_b = run({b}), both = run({a, b});
  NamedTensors sum;
  for (const auto& [name, gradient] : only_a) sum[name] = gradient + only_b.at(name);
  CHECK(largest_difference(both, sum) < 1e-12);
  CHECK(largest_difference(both, only_a) > 1e-3);
}

TEST_CASE("the same step twice gives the same bits") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const model::Model model = tiny_model("qwen3_moe");
    const auto stage = tiny_stage(model, dtype);
    const Batch batch = random_batch(model, 2, 8, 3);
    NamedTensors before;
    for (int i = 0; i < 2; ++i) {
      stage->zero_gradients();
      run_step(model, {stage.get()}, {batch});
      const NamedTensors now = gradients(*stage);
      for (const auto& [name, gradient] : before) CHECK(at::equal(gradient, now.at(name)));
      before = now;
    }
  }
}

TEST_CASE("fp32 is near fp64") {
  const model::Model model = tiny_model("olmoe");
  const Batch batch = random_batch(model, 2, 8, 3);
  NamedTensors wide, narrow;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto stage = tiny_stage(model, dtype);
    stage->zero_gradients();
    run_step(model, {stage.get()}, {batch});
    (dtype == at::kDouble ? wide : narrow) = gradients(*stage);
  }
  CHECK(largest_difference(narrow, wide) < 1e-4);
}

TEST_CASE("gradients that no backward reached read as zero") {
  const model::Model model = tiny_model("mixtral");
  const auto stage = tiny_stage(model);
  run_step(model, {stage.get()}, {random_batch(model, 1, 8, 1)});
  stage->zero_gradients();
  for (const int32_t layer : {-2, -1, 0, 1})
    CHECK(stage->gradients(layer, strategy::Axis::kData).count_nonzero().item<int64_t>() == 0);
  CHECK(stage->gradients(1, strategy::Axis::kExpertData).count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("parameters are views of one buffer a layer and sharding, in Hugging Face pieces") {
  const model::Model model = tiny_model("qwen3_moe");
  const auto stage = tiny_stage(model);
  std::map<std::pair<int32_t, strategy::Axis>, int64_t> elements;
  int64_t total = 0, in_pieces = 0;
  for (const Parameter& p : stage->parameters()) {
    elements[{p.layer, p.sharding.replicas}] += p.value.numel();
    total += p.value.numel();
    CHECK(p.decays == (p.name.find("norm") == std::string::npos));
    CHECK(p.offset == p.gradient.storage_offset());
  }
  for (const auto& [key, count] : elements) {
    const at::Tensor buffer = stage->gradients(key.first, key.second);
    CHECK(buffer.numel() == count);
    CHECK(buffer.is_contiguous());
  }
  std::set<std::string> names;
  for (const NamedPiece& piece : stage->named_pieces()) {
    in_pieces += piece.value.numel();
    CHECK(names.insert(piece.name).second);
  }
  CHECK(in_pieces == total);
  CHECK(names.count("model.layers.1.mlp.experts.5.gate_proj.weight") == 1);
  CHECK(names.count("model.layers.0.self_attn.k_norm.weight") == 1);
  CHECK_FALSE(stage->gradients(7, strategy::Axis::kData).defined());
  CHECK_FALSE(tiny_stage(tiny_model("llama"))->gradients(0, strategy::Axis::kExpertData).defined());
}

TEST_CASE(
    "logits follow from the hidden state, and a forward without a tape only counts the loss") {
  const model::Model model = tiny_model("llama");
  const auto stage = tiny_stage(model);
  const Batch batch = random_batch(model, 2, 8, 3);
  at::Tensor x = stage->embedding_forward(batch.tokens_BS);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const at::Tensor x1 = stage->attention_forward(layer, x, 8, nullptr);
    x = stage->dense_mlp_forward(layer, x1, nullptr);
  }
  const ReferenceResult plain =
      reference_forward(model, values(*stage), batch.tokens_BS, batch.targets_T);
  CHECK((stage->logits(x) - plain.logits).abs().max().item<double>() < 1e-11);
  stage->zero_gradients();
  stage->head_forward(x, batch.targets_T, nullptr);
  const StageStatistics statistics = stage->take_statistics();
  CHECK(statistics.loss_sum == doctest::Approx(plain.token_loss_sum.item<double>()));
  CHECK(statistics.target_tokens == num_targets(batch));
  CHECK(stage->gradients(-2, strategy::Axis::kData).count_nonzero().item<int64_t>() == 0);
  CHECK(stage->take_statistics().target_tokens == 0);
}

TEST_CASE("what cannot be trained is refused by name, every reason once") {
  model::Model model = tiny_model("mixtral");
  CHECK(model::untrainable(model).empty());
  model.rope.scaling = "dynamic";
  for (model::Layer& layer : model.layers) {
    layer.feed_forward.parallel_dense_ffn = 8;
    layer.attention.sinks = true;
  }
  CHECK(model::untrainable(model) ==
        std::vector<std::string>{
            "tiny mixtral: rotary scaling 'dynamic' is not trainable yet; allowed: none, linear, "
            "llama3, "
            "yarn",
            "tiny mixtral: layer 0: attention sinks are not trainable yet",
            "tiny mixtral: layer 0: a dense MLP beside the mixture is not trainable yet"});
  CHECK_THROWS_WITH_AS(tiny_stage([] {
                         model::Model unknown = tiny_model("mixtral");
                         unknown.family = "granitemoe";
                         return unknown;
                       }()),
                       doctest::Contains("family 'granitemoe' is not trainable yet"), InvalidInput);
  CHECK_THROWS_AS(tiny_stage(model), InvalidInput);
  model::Model clipped = tiny_model("olmoe");
  clipped.ignored_keys = {"clip_qkv"};
  CHECK(model::untrainable(clipped).front().find("'clip_qkv' of its config is not understood") !=
        std::string::npos);
  model::Model windowed = tiny_model("mixtral");
  windowed.layers[1].attention.window = 8;
  CHECK(tiny_stage(windowed) != nullptr);
  windowed.layers[1].attention.window = 7;
  CHECK_THROWS_AS(tiny_stage(windowed), InvalidInput);
}

}  // namespace
}  // namespace piper::nn
