// Counts of small models, computed by hand.
#include <doctest/doctest.h>
#include <piper/model/count.h>

namespace piper::model {
namespace {

// hidden 10, 4 heads of 3, 2 key-value heads; q 10x12, k and v 10x6 each, o 12x10.
Model one_layer(FeedForward feed_forward) {
  Model model;
  model.hidden = 10;
  model.vocabulary = 7;
  Layer layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 3};
  layer.feed_forward = feed_forward;
  model.layers = {layer};
  return model;
}

TEST_CASE("a dense layer is its projections, three matrices and two norms") {
  Model model = one_layer({.ffn = 5});
  const LayerParameters layer = count_layer(model, model.layers[0]);
  CHECK(layer.attention == 120 + 60 + 60 + 120);
  CHECK(layer.dense_mlp == 3 * 10 * 5);
  CHECK(layer.norms == 2 * 10);
  CHECK(layer.total() == 360 + 150 + 20);
  const Parameters all = count_parameters(model);
  CHECK(all.total() == 530 + /*embedding*/ 70 + /*head*/ 70 + /*final norm*/ 10);
  CHECK(active_parameters(model) == all.total());
}

TEST_CASE("a tied head counts once") {
  Model model = one_layer({.ffn = 5});
  model.tied_embeddings = true;
  CHECK(count_parameters(model).head == 0);
  CHECK(count_parameters(model).total() == 530 + 70 + 10);
  CHECK(active_parameters(model, false) == 530 + 70 + 10);  // the table is the head
}

TEST_CASE("biases, norms of q and k, sinks and an output gate add what they hold") {
  Model model = one_layer({.ffn = 5});
  Attention& a = model.layers[0].attention;
  a.query_bias = a.key_bias = a.value_bias = a.output_bias = true;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 12 + 6 + 6 + 10);
  a.sinks = true;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 34 + 4);
  a.qk_norm = QkNorm::kPerHead;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 38 + 2 * 3);
  a.qk_norm = QkNorm::kFull;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 38 + 12 + 6);
  a.qk_norm = QkNorm::kUnweighted;
  a.output_gate = true;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 38 + 120);
  a.gate_bias = true;
  CHECK(count_layer(model, model.layers[0]).attention == 360 + 38 + 120 + 12);
}

TEST_CASE("a mixture holds all experts and uses the chosen ones") {
  FeedForward moe{.ffn = 5, .num_experts = 8, .top_k = 2, .shared_ffn = 4, .shared_gate = true};
  Model model = one_layer(moe);
  const LayerParameters layer = count_layer(model, model.layers[0]);
  CHECK(layer.routed_experts == 8 * 150);
  CHECK(layer.shared_experts == 3 * 10 * 4);
  CHECK(layer.router == 8 * 10 + 10);
  CHECK(layer.dense_mlp == 0);
  CHECK(active_parameters(model) == count_parameters(model).total() - 6 * 150);
  CHECK(active_parameters(model, false) == count_parameters(model).total() - 6 * 150 - 70);
}

TEST_CASE("two matrices, expert biases, and a dense MLP beside the mixture") {
  FeedForward moe{.ffn = 5,
                  .num_matrices = 2,
                  .expert_bias = true,
                  .num_experts = 4,
                  .top_k = 1,
                  .router_bias = true,
                  .parallel_dense_ffn = 6,
                  .num_dense_matrices = 3};
  Model model = one_layer(moe);
  const LayerParameters layer = count_layer(model, model.layers[0]);
  CHECK(layer.routed_experts == 4 * (2 * 10 * 5 + 5 + 10));
  CHECK(layer.router == 4 * 10 + 4);
  CHECK(layer.shared_experts == 3 * 10 * 6);
}

TEST_CASE("a selection bias is a buffer unless it is stored as a parameter") {
  FeedForward moe{.ffn = 5, .num_experts = 4, .top_k = 1, .selection_bias = true};
  Model model = one_layer(moe);
  CHECK(count_layer(model, model.layers[0]).router == 40);
  model.layers[0].feed_forward.selection_bias_is_parameter = true;
  CHECK(count_layer(model, model.layers[0]).router == 44);
}

TEST_CASE("latent attention is its low-rank factors") {
  Model model = one_layer({.ffn = 5});
  Attention& a = model.layers[0].attention;
  a.kind = AttentionKind::kLatent;
  a.latent = {.query_rank = 8,
              .key_value_rank = 6,
              .nope_head_dim = 3,
              .rope_head_dim = 2,
              .value_head_dim = 4};
  // q: 10x8, norm 8, 8x(4*5); kv: 10x(6+2), norm 6, 6x(4*(3+4)); o: (4*4)x10
  CHECK(count_layer(model, model.layers[0]).attention == 80 + 8 + 160 + 80 + 6 + 168 + 160);
  a.latent.query_rank = 0;  // q: 10x(4*5)
  CHECK(count_layer(model, model.layers[0]).attention == 200 + 80 + 6 + 168 + 160);
}

TEST_CASE("a gated delta layer is its projections, convolution, decays and norm") {
  Model model = one_layer({.ffn = 5});
  Attention& a = model.layers[0].attention;
  a.kind = AttentionKind::kGatedDelta;
  a.delta = {
      .key_heads = 2, .value_heads = 4, .key_head_dim = 3, .value_head_dim = 5, .conv_kernel = 4};
  // q, k 10x6 each, v, z 10x20 each, b, a 10x4 each; conv (6+6+20)x4; decay and step 4 each; norm
  // 5; out 20x10
  CHECK(count_layer(model, model.layers[0]).attention == 120 + 400 + 80 + 128 + 8 + 5 + 200);
}

TEST_CASE("multi-token prediction stands beside the total") {
  Model model = one_layer({.ffn = 5});
  const int64_t without = count_parameters(model).total();
  model.num_next_token_layers = 2;
  CHECK(count_parameters(model).total() == without);
  CHECK(count_parameters(model).next_token_layers == 2 * (530 + 2 * 10 * 10 + 3 * 10));
}

TEST_CASE("modules that are trained have layers behind the model's, which count apart") {
  const Model model = one_layer({.ffn = 5});
  const Model trained = with_mtp(model, 2);
  CHECK(trained.num_layers() == 1);
  CHECK(trained.layers.size() == 3);
  CHECK(trained.layers[2] == model.layers[0]);
  CHECK(count_parameters(trained).total() == count_parameters(model).total());
  CHECK(active_parameters(trained) == active_parameters(model));
  CHECK(count_parameters(trained).next_token_layers == 2 * (530 + 2 * 10 * 10 + 3 * 10));
  CHECK(trained.mtp_depth_of(0) == 0);
  CHECK(trained.mtp_depth_of(2) == 2);
  CHECK(trained.trained_positions(0, 9) == 9);
  CHECK(trained.trained_positions(1, 9) == 8);
  CHECK(trained.trained_positions(2, 9) == 7);
}

TEST_CASE(
    "a module's work is its join, a layer and the head, on the positions that have a target") {
  const Model model = one_layer({.ffn = 5});
  // The first 3 of 4 tokens have a target: 2 x (360 projections + 150 MLP) and scores 4 x 12 x 3/2;
  // join 2 x 20 x 10; head 2 x 10 x 7.
  const TokenFlops flops = token_flops(with_mtp(model, 1), 4);
  CHECK(flops.mtp == doctest::Approx(0.75 * (1020 + 72 + 400 + 140)));
  CHECK(flops.forward() == doctest::Approx(token_flops(model, 4).forward() + flops.mtp));
}

}  // namespace
}  // namespace piper::model
