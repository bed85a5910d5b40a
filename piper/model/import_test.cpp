// Keys are read by meaning: the same model under many spellings.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/count.h>
#include <piper/model/import.h>

#include <algorithm>

namespace piper::model {
namespace {

Json mixtral() {
  return {{"model_type", "mixtral"}, {"hidden_size", 64},        {"intermediate_size", 96},
          {"num_hidden_layers", 6},  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"num_local_experts", 8},  {"num_experts_per_tok", 2}, {"vocab_size", 100},
          {"rms_norm_eps", 1e-5},    {"rope_theta", 1e6},        {"tie_word_embeddings", false}};
}

Json with(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

Json renamed(Json config, const std::string& from, const std::string& to) {
  config[to] = config[from];
  config.erase(from);
  return config;
}

Model read(const Json& config) { return import_config(config, "test.json"); }

std::string mixture_pattern(const Model& model) {
  std::string pattern;
  for (const Layer& layer : model.layers) pattern += layer.feed_forward.is_moe() ? 'M' : 'd';
  return pattern;
}

TEST_CASE("the coefficient of the z-loss is read where a config has one") {
  Json config = mixtral();
  config["router_z_loss_coef"] = 0.002;
  CHECK(read(config).router_z_coefficient == 0.002);
  CHECK(read(config).ignored_keys.empty());
}

TEST_CASE("a coefficient for balance is read with whose loss it weighs") {
  const auto with_key = [](const char* key, double value) {
    Json config = mixtral();
    config.erase("router_aux_loss_coef");
    config[key] = value;
    return read(config);
  };
  const Model joined = with_key("router_aux_loss_coef", 0.02);  // 6 layers, top 2
  CHECK(joined.balancing_loss == BalancingLoss::kJoinedLayers);
  CHECK(joined.router_aux_coefficient == 0.02);
  CHECK(joined.layer_aux_coefficient() == doctest::Approx(0.02 * 2 / 6));
  for (const char* key : {"aux_loss_alpha", "moe_aux_loss_coeff"}) {
    const Model each = with_key(key, 0.02);
    CHECK(each.balancing_loss == BalancingLoss::kEachLayer);
    CHECK(each.layer_aux_coefficient() == 0.02);
  }
  Json both = mixtral();  // two losses, so no contradiction: transformers' class reads its own
  both["router_aux_loss_coef"] = 0.03;
  both["aux_loss_alpha"] = 0.02;
  CHECK(read(both).balancing_loss == BalancingLoss::kJoinedLayers);
  CHECK(read(both).router_aux_coefficient == 0.03);
}

TEST_CASE("a joined loss counts mixture layers alone, and no modules of multi-token prediction") {
  Json config = mixtral();
  config["router_aux_loss_coef"] = 0.02;
  config["mlp_only_layers"] = {0, 3};
  config["moe_intermediate_size"] = 32;
  const Model model = read(config);
  REQUIRE(model.num_moe_layers() == 4);
  CHECK(model.layer_aux_coefficient() == doctest::Approx(0.02 * 2 / 4));
  CHECK(with_mtp(model, 2).layer_aux_coefficient() == model.layer_aux_coefficient());
}

TEST_CASE("a Mixtral config becomes its layers") {
  const Model model = read(mixtral());
  CHECK(model.family == "mixtral");
  CHECK(model.num_layers() == 6);
  CHECK(model.rope.theta == 1e6);
  CHECK(model.norm_epsilon == 1e-5);
  CHECK(model.router_aux_coefficient == 0.001);
  CHECK(model.router_z_coefficient == 0);
  CHECK(model.assumptions.empty());
  const Layer& layer = model.layers[3];
  CHECK(layer.attention.head_dim == 16);
  CHECK(layer.attention.num_kv_heads == 2);
  CHECK(layer.attention.qk_norm == QkNorm::kNone);
  CHECK(layer.feed_forward.num_experts == 8);
  CHECK(layer.feed_forward.top_k == 2);
  CHECK(layer.feed_forward.ffn == 96);
  CHECK(layer.feed_forward.normalise_top_k);
}

TEST_CASE("spellings of one meaning give one model") {
  const Model expected = read(mixtral());
  for (const char* name : {"num_experts", "n_routed_experts", "moe_num_experts"})
    CHECK(read(renamed(mixtral(), "num_local_experts", name)).layers == expected.layers);
  for (const char* name : {"moe_topk", "moe_k", "moe_top_k", "experts_per_token"})
    CHECK(read(renamed(mixtral(), "num_experts_per_tok", name)).layers == expected.layers);
  CHECK(read(renamed(mixtral(), "hidden_size", "d_model")).hidden == 64);
  CHECK(read(renamed(mixtral(), "num_hidden_layers", "n_layers")).num_layers() == 6);
  CHECK(read(with(mixtral(), {{"num_experts", 8}})).layers == expected.layers);
}

TEST_CASE("rope_parameters says what rope_theta and rope_scaling said") {
  Json config = mixtral();
  config.erase("rope_theta");
  const Json rope = {
      {"rope_theta", 5e5}, {"rope_type", "yarn"}, {"factor", 4.0}, {"partial_rotary_factor", 0.5}};
  const Model model = read(with(config, {{"rope_parameters", rope}}));
  CHECK(model.rope.theta == 5e5);
  CHECK(model.rope.scaling == "yarn");
  CHECK(model.rope.partial_factor == 0.5);
  const Model older = read(
      with(config, {{"rope_theta", 5e5}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}));
  CHECK(older.rope.theta == 5e5);
  CHECK(older.rope.scaling == "yarn");
  CHECK_THROWS_AS(read(with(mixtral(), {{"rope_parameters", rope}})),
                  InvalidInput);  // 1e6 against 5e5
}

TEST_CASE("families imply what their configs do not say") {
  const auto family = [](const char* type) {
    return read(with(mixtral(), {{"model_type", type}}));
  };
  CHECK(family("qwen3_moe").layers[0].attention.qk_norm == QkNorm::kPerHead);
  CHECK_FALSE(family("qwen3_moe").layers[0].feed_forward.normalise_top_k);
  CHECK(family("olmoe").layers[0].attention.qk_norm == QkNorm::kFull);
  CHECK(family("olmoe").router_aux_coefficient == 0.01);
  const Attention qwen2 = family("qwen2_moe").layers[0].attention;
  CHECK(qwen2.query_bias);
  CHECK(qwen2.value_bias);
  CHECK_FALSE(qwen2.output_bias);
  CHECK(family("gpt_oss").router_aux_coefficient == 0.001);
  CHECK(read(with(mixtral(), {{"model_type", "laguna"}, {"moe_intermediate_size", 14336}}))
            .router_aux_coefficient == 0.001);
  const Layer gpt_oss = family("gpt_oss").layers[0];
  CHECK(gpt_oss.attention.sinks);
  CHECK(gpt_oss.attention.output_bias);
  CHECK(gpt_oss.feed_forward.router_bias);
  CHECK(gpt_oss.feed_forward.expert_bias);
  const Json sparse = {{"first_k_dense_replace", 0}, {"moe_intermediate_size", 64}};
  const FeedForward deepseek =
      read(with(with(mixtral(), sparse), {{"model_type", "deepseek_v3"}})).layers[0].feed_forward;
  CHECK(deepseek.score == Score::kSigmoid);
  CHECK(deepseek.selection_bias);
}

TEST_CASE("a key left out has the family's value, and that is said") {
  Json config = with(mixtral(), {{"num_attention_heads", 16}});
  config.erase("num_key_value_heads");
  const Model model = read(config);
  CHECK(model.layers[0].attention.num_kv_heads == 8);
  CHECK(std::ranges::count(model.assumptions,
                           "num_key_value_heads is not given: 8, as mixtral has it by default") ==
        1);
  // One that is null is given; one that does not fit is not used.
  config["num_key_value_heads"] = nullptr;
  CHECK(read(config).layers[0].attention.num_kv_heads == 16);
  config.erase("num_key_value_heads");
  config["num_attention_heads"] = 4;
  CHECK(read(config).layers[0].attention.num_kv_heads == 4);
}

TEST_CASE("attention_bias means what the family means by it") {
  const auto bias = [](const char* type) {
    return read(with(mixtral(), {{"model_type", type},
                                 {"attention_bias", true},
                                 {"first_k_dense_replace", 0},
                                 {"moe_intermediate_size", 64}}))
        .layers[0]
        .attention;
  };
  CHECK(bias("qwen3_moe").output_bias);
  CHECK(bias("glm4_moe").query_bias);
  CHECK_FALSE(bias("glm4_moe").output_bias);
}

TEST_CASE("mixture layers follow every rule there is") {
  Json config = renamed(mixtral(), "num_local_experts", "num_experts");
  config["moe_intermediate_size"] = 32;
  const auto pattern = [&](const Json& changes) {
    return mixture_pattern(read(with(config, changes)));
  };
  CHECK(pattern(Json::object()) == "MMMMMM");
  CHECK(pattern({{"first_k_dense_replace", 2}}) == "ddMMMM");
  CHECK(pattern({{"decoder_sparse_step", 2}}) == "dMdMdM");
  CHECK(pattern({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}}) == "dddMdM");
  CHECK(pattern({{"moe_layer_freq", 2}, {"first_k_dense_replace", 1}}) == "ddMdMd");
  CHECK(pattern({{"moe_layer_freq", {0, 1, 1, 0, 1, 1}}}) == "dMMdMM");
  CHECK(pattern({{"interleave_moe_layer_step", 3}}) == "ddMddM");
  CHECK(pattern({{"moe_layers", {0, 5}}}) == "MddddM");
  CHECK(pattern({{"moe_layer_start_index", 1}, {"moe_layer_end_index", 3}}) == "dMMMdd");
  CHECK(pattern({{"mlp_layer_types", {"dense", "sparse", "sparse", "dense", "sparse", "dense"}}}) ==
        "dMMdMd");
  const Model model = read(with(config, {{"first_k_dense_replace", 2}}));
  CHECK(model.layers[0].feed_forward.ffn == 96);
  CHECK(model.layers[2].feed_forward.ffn == 32);
  CHECK(model.num_moe_layers() == 4);
}

TEST_CASE("shared experts are a width, or a number of experts") {
  const auto shared = [](const Json& changes) {
    return read(with(mixtral(), changes)).layers[0].feed_forward.shared_ffn;
  };
  CHECK(shared(Json::object()) == 0);
  CHECK(shared({{"n_shared_experts", 2}}) == 2 * 96);
  CHECK(shared({{"n_shared_experts", nullptr}}) == 0);
  CHECK(shared({{"shared_expert_intermediate_size", 40}}) == 40);
  CHECK(shared({{"n_shared_experts", 2}, {"moe_intermediate_size", 8}}) == 16);
  CHECK(shared({{"num_shared_experts", 3}, {"moe_shared_expert_intermediate_size", 10}}) == 30);
}

TEST_CASE("windows come from layer_types, from a pattern, or for every layer") {
  const auto windows = [](const Json& changes) {
    std::vector<int64_t> out;
    for (const Layer& layer : read(with(mixtral(), changes)).layers)
      out.push_back(layer.attention.window);
    return out;
  };
  using W = std::vector<int64_t>;
  CHECK(windows({{"sliding_window", 8}}) == W{8, 8, 8, 8, 8, 8});
  CHECK(windows({{"sliding_window", nullptr}}) == W{0, 0, 0, 0, 0, 0});
  CHECK(windows({{"sliding_window", 8}, {"use_sliding_window", false}}) == W{0, 0, 0, 0, 0, 0});
  CHECK(windows({{"sliding_window", 8}, {"use_sliding_window", true}, {"max_window_layers", 4}}) ==
        W{0, 0, 0, 0, 8, 8});
  CHECK(windows({{"sliding_window", 8}, {"sliding_window_pattern", 3}}) == W{8, 8, 0, 8, 8, 0});
  const Json types = {"sliding_attention", "full_attention", "full_attention",
                      "sliding_attention", "full_attention", "full_attention"};
  CHECK(windows({{"sliding_window", 8}, {"layer_types", types}}) == W{8, 0, 0, 8, 0, 0});
}

TEST_CASE(
    "Llama 4: chunks and positions in three layers of four, its text model inside a wrapper") {
  Json text = with(mixtral(), {{"model_type", "llama4_text"},
                               {"attention_chunk_size", 32},
                               {"intermediate_size_mlp", 48},
                               {"interleave_moe_layer_step", 2},
                               {"head_dim", 16}});
  text.erase("tie_word_embeddings");
  const Model model = read({{"model_type", "llama4"},
                            {"text_config", text},
                            {"tie_word_embeddings", true},
                            {"vision_config", {{"hidden_size", 9}, {"num_hidden_layers", 3}}}});
  CHECK(model.tied_embeddings);
  CHECK(model.layers[0].attention.window == 32);
  CHECK(model.layers[0].attention.chunked);
  CHECK(model.layers[0].attention.qk_norm == QkNorm::kUnweighted);
  CHECK_FALSE(model.layers[3].attention.rotary);
  CHECK(model.layers[3].attention.window == 0);
  CHECK(model.layers[3].attention.qk_norm == QkNorm::kNone);
  CHECK(model.layers[0].feed_forward.ffn == 48);
  CHECK(model.layers[1].feed_forward.ffn == 96);
  CHECK(model.layers[1].feed_forward.shared_ffn == 96);
  CHECK(model.ignored_keys.empty());
  REQUIRE(model.towers.size() == 1);
  CHECK(model.towers[0].name == "vision_config");
  CHECK_FALSE(model.towers[0].parameters.has_value());  // most of its sizes are not said
}

TEST_CASE("Qwen3-Next: every fourth layer attends, the others are gated delta nets") {
  const Json delta = {{"model_type", "qwen3_next"},   {"linear_num_key_heads", 2},
                      {"linear_num_value_heads", 4},  {"linear_key_head_dim", 8},
                      {"linear_value_head_dim", 8},   {"linear_conv_kernel_dim", 4},
                      {"full_attention_interval", 4}, {"head_dim", 16}};
  const Model model = read(with(mixtral(), delta));
  CHECK(model.layers[0].attention.kind == AttentionKind::kGatedDelta);
  CHECK(model.layers[3].attention.kind == AttentionKind::kGrouped);
  CHECK(model.layers[3].attention.output_gate);
  CHECK(model.layers[3].attention.qk_norm == QkNorm::kPerHead);
  CHECK(model.layers[4].attention.kind == AttentionKind::kGatedDelta);
}

TEST_CASE("a DBRX config keeps attention and feed-forward in parts of their own") {
  const Model model =
      read({{"model_type", "dbrx"},
            {"d_model", 64},
            {"n_heads", 4},
            {"n_layers", 2},
            {"max_seq_len", 128},
            {"vocab_size", 100},
            {"tie_word_embeddings", false},
            {"attn_config", {{"kv_n_heads", 2}, {"rope_theta", 5e5}, {"model_type", ""}}},
            {"ffn_config",
             {{"ffn_hidden_size", 32},
              {"moe_num_experts", 4},
              {"moe_top_k", 2},
              {"moe_loss_weight", 0.05},
              {"model_type", ""}}}});
  CHECK(model.layers[0].attention.num_kv_heads == 2);
  CHECK(model.layers[0].feed_forward.ffn == 32);
  CHECK(model.layers[0].feed_forward.top_k == 2);
  CHECK(model.rope.theta == 5e5);
  CHECK(model.router_aux_coefficient == 0.05);
}

TEST_CASE("an unknown family is read by its keys, and says so") {
  const Model model = read(with(mixtral(), {{"model_type", "fancy_moe"}}));
  CHECK(model.layers[0].feed_forward.num_experts == 8);
  REQUIRE(model.assumptions.size() == 1);
  CHECK(model.assumptions[0].find("'fancy_moe' is not known") != std::string::npos);
}

TEST_CASE("keys without a meaning here are listed, known ones without effect are not") {
  const Model model = read(with(mixtral(), {{"favourite_colour", "blue"},
                                            {"bos_token_id", 1},
                                            {"use_cache", true},
                                            {"torch_dtype", "bfloat16"},
                                            {"dtype", "bfloat16"}}));
  CHECK(model.ignored_keys == std::vector<std::string>{"favourite_colour"});
}

}  // namespace
}  // namespace piper::model
