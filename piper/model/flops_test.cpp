#include <doctest/doctest.h>
#include <piper/model/count.h>
#include <piper/model/import.h>

namespace piper::model {
namespace {

TEST_CASE("FLOPs of a small layer by hand") {
  Model model;
  model.hidden = 10;
  model.vocabulary = 7;
  Layer layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 3};
  layer.feed_forward = {.ffn = 5, .num_experts = 8, .top_k = 2, .shared_ffn = 4};
  model.layers = {layer, layer};
  const TokenFlops one = layer_token_flops(model, layer, 64);
  CHECK(one.attention_projections == 2 * 360);
  CHECK(one.attention_scores ==
        2 * 12 * 32 + 2 * 12 * 32);  // QK^T and PV against 32 positions on average
  CHECK(one.router == 2 * 10 * 8);
  CHECK(one.routed_experts == 2 * 2 * 150);
  CHECK(one.shared_experts == 2 * 120);
  CHECK(one.head == 0);
  const TokenFlops all = token_flops(model, 64);
  CHECK(all.head == 2 * 70);
  CHECK(all.forward() == 2 * one.forward() + 140);
  CHECK(all.backward() == 2 * all.forward());
}

TEST_CASE("a sliding window and a chunk bound what a token sees") {
  Model model;
  model.hidden = 10;
  Layer layer;
  layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 1};
  layer.feed_forward = {.ffn = 1};
  const auto context = [&](int64_t window, bool chunked, int64_t sequence) {
    layer.attention.window = window;
    layer.attention.chunked = chunked;
    return layer_token_flops(model, layer, sequence).attention_scores / 4;
  };
  CHECK(context(0, false, 100) == 50);
  CHECK(context(100, false, 100) == 50);
  CHECK(context(20, false, 100) == 20 - 2);  // 20 tokens see 10 on average, 80 see 20
  CHECK(context(20, true, 100) == 10);
}

TEST_CASE("twice the active weights that multiply, plus the scores, is the forward") {
  for (const char* name : {"mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "m10b-e16"}) {
    const Model model = load_model(name);
    const TokenFlops flops = token_flops(model, 4096);
    const double weights = 2.0 * static_cast<double>(active_parameters(model, false));
    CHECK_MESSAGE(
        (flops.forward() - flops.attention_scores) / weights == doctest::Approx(1.0).epsilon(1e-3),
        name);
  }
}

TEST_CASE("the indexer of DeepSeek-V3.2 makes long attention cheaper and short attention dearer") {
  const Model dense = load_model("deepseek-v3"), sparse = load_model("deepseek-v3.2");
  CHECK(token_flops(sparse, 131072).forward() < 0.5 * token_flops(dense, 131072).forward());
  CHECK(token_flops(sparse, 2048).forward() > token_flops(dense, 2048).forward());
}

}  // namespace
}  // namespace piper::model
