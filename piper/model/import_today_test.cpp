// Models of 2025 and 2026: small configs whose parameters are counted by hand, and published ones
// against the number that transformers 5.23 gives.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/count.h>
#include <piper/model/describe.h>
#include <piper/model/import.h>

#include <string>

namespace piper::model {
namespace {

Json small(const std::string& family, const Json& more) {
  Json config = {
      {"model_type", family},   {"hidden_size", 10},           {"intermediate_size", 6},
      {"num_hidden_layers", 2}, {"num_attention_heads", 4},    {"num_key_value_heads", 2},
      {"head_dim", 3},          {"vocab_size", 100},           {"rms_norm_eps", 1e-5},
      {"rope_theta", 1e4},      {"tie_word_embeddings", false}};
  config.update(more);
  return config;
}

Json with_experts(const Json& more) {
  Json config = {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 5}};
  config.update(more);
  return config;
}

Model read_today(const Json& config, const std::vector<std::string>& ignore = {}) {
  return import_config(config, "c.json", ignore);
}

std::string complaint_of(const Json& config) {
  try {
    read_today(config);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "accepted";
}

int64_t attention_of(const Model& model, size_t layer) {
  return count_layer(model, model.layers[layer]).attention;
}

TEST_CASE("MiniMax-M2: a list of attention that is full everywhere is read, another is refused") {
  Json config = small("minimax_m2", with_experts({{"attn_type_list", {1, 1}}}));
  const Model model = read_today(config);
  CHECK(model.ignored_keys.empty());
  CHECK(model.layers[0].attention.kind == AttentionKind::kGrouped);
  config["attn_type_list"] = {0, 1};
  CHECK(complaint_of(config).find("'attn_type_list' is [0,1], which Piper cannot describe: linear "
                                  "attention") != std::string::npos);
  config["attn_type_list"] = {1, 1, 1};
  CHECK(complaint_of(config).find(
            "'attn_type_list' has 3 entries; allowed: one for each of the 2") != std::string::npos);
}

TEST_CASE("EXAONE-MoE: a list says layer by layer which ones are mixtures, whatever else says") {
  Json config = small("exaone_moe", with_experts({{"num_hidden_layers", 4},
                                                  {"first_last_k_dense_replace", 1},
                                                  {"is_moe_layer", {false, true, false, true}}}));
  const auto pattern = [&] {
    std::string text;
    for (const Layer& layer : read_today(config).layers)
      text += layer.feed_forward.is_moe() ? 'M' : 'd';
    return text;
  };
  CHECK(pattern() == "dMdM");
  config["is_moe_layer"] = {0, 0, 1, 1};
  CHECK(pattern() == "ddMM");
  config["is_moe_layer"] = {true, false};
  CHECK(complaint_of(config).find("'is_moe_layer' has 2 entries; allowed: one for each of the 4") !=
        std::string::npos);
  config["is_moe_layer"] = {true, false, 2, true};
  CHECK(complaint_of(config).find("'is_moe_layer[2]' is 2; allowed: true, false") !=
        std::string::npos);
}

TEST_CASE("a list with an entry a layer that nothing reads is refused, unless all entries agree") {
  const auto config = [](const Json& more) {
    Json all = small("qwen3", {{"num_hidden_layers", 4}});
    all.update(more);
    return all;
  };
  const Json differ = {{"swiglu_limits", {0, 0, 7, 7}}};
  CHECK(complaint_of(config(differ))
            .find("'swiglu_limits' has an entry for each layer, and they "
                  "differ") != std::string::npos);
  CHECK(complaint_of(config(differ)).find("--ignore swiglu_limits") != std::string::npos);
  CHECK(read_today(config(differ), {"swiglu_limits"}).num_layers() == 4);
  CHECK(complaint_of(config({{"kinds_of", {{"a", {"x", "y", "x", "y"}}}}}))
            .find("'kinds_of.a' has an entry for each layer") != std::string::npos);
  // One more for a module of multi-token prediction.
  CHECK(complaint_of(config({{"kinds", {1, 2, 1, 2, 1}}, {"num_nextn_predict_layers", 1}}))
            .find("'kinds' has an entry for each layer") != std::string::npos);
  for (const Json& harmless : {Json{{"kinds", {7, 7, 7, 7}}}, Json{{"kinds", {1, 2, 1}}},
                               Json{{"eos_token_id", {1, 2, 3, 4}}}})
    CHECK(complaint_of(config(harmless)) == "accepted");
}

TEST_CASE("MiMo-V2-Flash: heads, value sizes and sinks by kind of layer") {
  const Model model =
      read_today(small("mimo_v2_flash", with_experts({{"v_head_dim", 2},
                                                      {"hybrid_layer_pattern", {0, 1}},
                                                      {"sliding_window", 16},
                                                      {"swa_num_attention_heads", 8},
                                                      {"swa_num_key_value_heads", 4},
                                                      {"swa_head_dim", 5},
                                                      {"swa_v_head_dim", 7},
                                                      {"add_swa_attention_sink_bias", true},
                                                      {"add_full_attention_sink_bias", false},
                                                      {"moe_layer_freq", {0, 1}}})));
  // Queries 4 x 3, keys 2 x 3, values 2 x 2, the way out from 4 x 2.
  CHECK(attention_of(model, 0) == 10 * (12 + 6 + 4 + 8));
  // Queries 8 x 5, keys 4 x 5, values 4 x 7, the way out from 8 x 7, a sink a head.
  CHECK(attention_of(model, 1) == 10 * (40 + 20 + 28 + 56) + 8);
  CHECK(model.layers[1].attention.window == 16);
  CHECK_FALSE(model.layers[0].feed_forward.is_moe());
  CHECK(describe(model.layers[1].attention) == "8 heads of 5 (values 7), 4 kv, window 16");
  // 20 tokens see 10 each on average; 16 of them in a window of 16 see 8, the rest 16: 9.6.
  CHECK(layer_token_flops(model, model.layers[0], 20).attention_scores == 2 * (12 + 8) * 10);
  CHECK(layer_token_flops(model, model.layers[1], 20).attention_scores ==
        doctest::Approx(2 * (40 + 56) * (16 - 256.0 / 40)));
  CHECK(layer_token_flops(model, model.layers[1], 20).attention_projections == 2 * 1440);
}

TEST_CASE(
    "Gemma 4: larger heads in full layers, values that are keys, experts beside a dense "
    "feed-forward") {
  const Model model = read_today(
      small("gemma4_text", with_experts({{"layer_types", {"sliding_attention", "full_attention"}},
                                         {"sliding_window", 16},
                                         {"global_head_dim", 6},
                                         {"num_global_key_value_heads", 1},
                                         {"attention_k_eq_v", true},
                                         {"enable_moe_block", true},
                                         {"hidden_size_per_layer_input", 0}})));
  CHECK(attention_of(model, 0) == 10 * (12 + 6 + 6 + 12) + 2 * 3);
  CHECK(attention_of(model, 1) == 10 * (24 + 6 + 24) + 2 * 6);  // no projection of values
  const LayerParameters layer = count_layer(model, model.layers[1]);
  CHECK(layer.router == 8 * 10 + 10 + 8);
  CHECK(layer.routed_experts == 8 * 3 * 10 * 5);
  CHECK(layer.shared_experts == 3 * 10 * 6);
  CHECK(layer.norms == 7 * 10);
  CHECK(describe(model.layers[1].attention) == "4 heads of 6, 1 kv, values are keys");
}

TEST_CASE("Gemma 4: shared keys, a wide feed-forward with them, an embedding for each layer") {
  const Model model = read_today(small("gemma4_text", {{"num_hidden_layers", 4},
                                                       {"layer_types",
                                                        {"sliding_attention", "full_attention",
                                                         "sliding_attention", "full_attention"}},
                                                       {"global_head_dim", 6},
                                                       {"num_kv_shared_layers", 2},
                                                       {"use_double_wide_mlp", true},
                                                       {"tie_word_embeddings", true},
                                                       {"hidden_size_per_layer_input", 5},
                                                       {"vocab_size_per_layer_input", 50}}));
  CHECK(attention_of(model, 1) == 10 * (24 + 12 + 12 + 24) + 2 * 6);
  CHECK(attention_of(model, 3) == 10 * (24 + 24) + 6);  // queries, their norm, the way out
  CHECK(model.layers[1].feed_forward.ffn == 6);
  CHECK(model.layers[3].feed_forward.ffn == 12);
  const Parameters all = count_parameters(model);
  CHECK(all.embedding == 100 * 10 + (50 + 10) * 4 * 5 + 5);
  CHECK(all.layers[0].inputs == 2 * 10 * 5);
  CHECK(all.layers[0].norms == 5 * 10);
  CHECK(layer_token_flops(model, model.layers[0], 8).inputs == 2 * 3 * 10 * 5);
  CHECK(model.num_moe_layers() == 0);
}

TEST_CASE("Step-3.5: a gate a head, a shared expert by its width, other heads in sliding layers") {
  const Model model = read_today(
      small("step3p5", {{"moe_num_experts", 8},
                        {"moe_top_k", 2},
                        {"moe_intermediate_size", 5},
                        {"share_expert_dim", 4},
                        {"use_moe_router_bias", true},
                        {"moe_router_scaling_factor", 3.0},
                        {"moe_layers_enum", "1,2"},
                        {"num_nextn_predict_layers", 1},
                        {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
                        {"sliding_window", 16},
                        {"attention_other_setting",
                         {{"attention_type", "sliding_attention"},
                          {"num_attention_heads", 6},
                          {"num_attention_groups", 2},
                          {"head_dim", 3}}}}));
  CHECK(attention_of(model, 0) == 10 * (12 + 4 + 6 + 6 + 12) + 2 * 3);
  CHECK(attention_of(model, 1) == 10 * (18 + 6 + 6 + 6 + 18) + 2 * 3);
  CHECK_FALSE(model.layers[0].feed_forward.is_moe());
  CHECK(model.layers[1].feed_forward.shared_ffn == 4);
  CHECK(model.layers[1].feed_forward.routed_scaling == 3.0);
  CHECK(model.layers[1].feed_forward.selection_bias);
  CHECK(complaint_of(small("step3p5", with_experts({{"moe_layers_enum", "1,x"}})))
            .find("'moe_layers_enum' is '1,x'") != std::string::npos);
}

TEST_CASE("MiniMax-M3: an indexer of blocks in some layers, a width of the dense layers") {
  const Model model =
      read_today(small("minimax_m3", with_experts({{"qk_norm_type", "per_head"},
                                                   {"use_qk_norm", true},
                                                   {"use_routing_bias", true},
                                                   {"dense_intermediate_size", 9},
                                                   {"shared_intermediate_size", 5},
                                                   {"n_shared_experts", 1},
                                                   {"moe_layer_freq", {0, 1}},
                                                   {"num_mtp_modules", 7},
                                                   {"num_nextn_predict_layers", 1},
                                                   {"sparse_attention_config",
                                                    {{"use_sparse_attention", true},
                                                     {"sparse_attention_freq", {0, 1}},
                                                     {"sparse_num_index_heads", 2},
                                                     {"sparse_index_dim", 4},
                                                     {"sparse_topk_blocks", 2},
                                                     {"sparse_block_size", 8}}}})));
  CHECK(attention_of(model, 0) == 10 * (12 + 6 + 6 + 12) + 2 * 3);
  CHECK(attention_of(model, 1) == attention_of(model, 0) + 10 * 2 * 4 + 10 * 4 + 2 * 4);
  CHECK(model.layers[0].feed_forward.ffn == 9);
  CHECK(model.layers[1].feed_forward.shared_ffn == 5);
  CHECK(model.num_next_token_layers == 1);
  // It attends to 16 tokens of 20, and its two small heads score all of them.
  CHECK(layer_token_flops(model, model.layers[1], 20).attention_scores ==
        doctest::Approx(4 * 12 * (16 - 256.0 / 40) + 2 * 8 * 10));
}

TEST_CASE("MiniMax-M2: one norm over all heads when its config says so") {
  const Model model = read_today(small("minimax_m2", {{"num_local_experts", 8},
                                                      {"num_experts_per_tok", 2},
                                                      {"use_qk_norm", true},
                                                      {"qk_norm_type", "per_layer"},
                                                      {"use_routing_bias", true},
                                                      {"use_mtp", true},
                                                      {"num_mtp_modules", 3},
                                                      {"mtp_transformer_layers", 1},
                                                      {"shared_intermediate_size", 0}}));
  CHECK(attention_of(model, 0) == 10 * (12 + 6 + 6 + 12) + 12 + 6);
  CHECK(model.num_next_token_layers == 3);
  CHECK(model.layers[0].feed_forward.shared_ffn == 0);
  CHECK(complaint_of(small("llama", {{"qk_norm_type", "odd"}})) ==
        "c.json: 'qk_norm_type' is 'odd'; allowed: per_head, per_layer");
}

TEST_CASE(
    "GLM-5.2: layers that share an indexer's choice have none, as a list, as letters, as a "
    "schedule") {
  const Json latent = {{"num_hidden_layers", 4}, {"q_lora_rank", 7},      {"kv_lora_rank", 5},
                       {"qk_nope_head_dim", 3},  {"qk_rope_head_dim", 2}, {"v_head_dim", 4},
                       {"index_n_heads", 2},     {"index_head_dim", 4},   {"index_topk", 8}};
  const auto shared = [&](const Json& more) {
    Json config = small("deepseek_v32", with_experts(latent));
    config["n_shared_experts"] = 0;
    config["first_k_dense_replace"] = 0;
    config["num_key_value_heads"] = 4;
    config["n_group"] = config["topk_group"] = 1;
    config.update(more);
    std::string letters;
    for (const Layer& layer : read_today(config).layers)
      letters += layer.attention.indexer.shared ? 'S' : 'F';
    return letters;
  };
  CHECK(shared(Json::object()) == "FFFF");
  CHECK(shared({{"indexer_types", {"full", "shared", "full", "shared"}}}) == "FSFS");
  CHECK(shared({{"index_topk_pattern", "FSSF"}}) == "FSSF");
  CHECK(shared({{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}}) == "FSFS");
  Json config = small("glm_moe_dsa", with_experts(latent));
  config.update({{"n_shared_experts", 0},
                 {"first_k_dense_replace", 0},
                 {"num_key_value_heads", 4},
                 {"indexer_types", {"full", "shared", "full", "shared"}}});
  const Model model = read_today(config);
  CHECK(attention_of(model, 0) - attention_of(model, 1) == 7 * 2 * 4 + 10 * 4 + 2 * 4 + 10 * 2);
  CHECK(layer_token_flops(model, model.layers[1], 100).attention_scores ==
        doctest::Approx(2 * 4 * (5 + 4) * (8 - 64.0 / 200)));
  config["indexer_types"][0] = "shared";
  CHECK(complaint_of(config).find("begins with a shared indexer") != std::string::npos);
}

TEST_CASE(
    "Qwen3.5: keys of its linear attention and of its modules are known, its vision tower is "
    "counted apart") {
  Json text = small("qwen3_5_text", {{"mtp_num_hidden_layers", 1},
                                     {"mtp_use_dedicated_embeddings", false},
                                     {"mamba_ssm_dtype", "float32"},
                                     {"linear_num_key_heads", 2},
                                     {"linear_num_value_heads", 4},
                                     {"linear_key_head_dim", 8},
                                     {"linear_value_head_dim", 8},
                                     {"linear_conv_kernel_dim", 4},
                                     {"mlp_only_layers", Json::array()},
                                     {"layer_types", {"linear_attention", "full_attention"}}});
  const Model model = read_today({{"model_type", "qwen3_5"},
                                  {"text_config", text},
                                  {"image_token_id", 7},
                                  {"vision_config",
                                   {{"depth", 2},
                                    {"hidden_size", 4},
                                    {"intermediate_size", 6},
                                    {"num_heads", 2},
                                    {"in_channels", 3},
                                    {"num_position_embeddings", 9},
                                    {"out_hidden_size", 10},
                                    {"patch_size", 2},
                                    {"spatial_merge_size", 2},
                                    {"temporal_patch_size", 2}}}});
  CHECK(model.ignored_keys.empty());
  CHECK(model.num_next_token_layers == 1);
  CHECK(model.layers[0].attention.kind == AttentionKind::kGatedDelta);
  REQUIRE(model.towers.size() == 1);
  const int64_t block = 4 * 4 + 4 * (4 * 4 + 4) + (4 * 6 + 6) + (6 * 4 + 4);
  const int64_t merger = 2 * 4 + (16 * 16 + 16) + (16 * 10 + 10);
  CHECK(model.towers[0].parameters == (24 * 4 + 4) + 9 * 4 + 2 * block + merger);
}

TEST_CASE("published sizes against transformers 5.23") {
  const Json m2 = {{"model_type", "minimax_m2"},    {"num_hidden_layers", 62},
                   {"hidden_size", 3072},           {"num_attention_heads", 48},
                   {"num_key_value_heads", 8},      {"head_dim", 128},
                   {"intermediate_size", 1536},     {"vocab_size", 200064},
                   {"num_experts_per_tok", 8},      {"num_local_experts", 256},
                   {"rope_theta", 5000000},         {"rotary_dim", 64},
                   {"rms_norm_eps", 1e-6},          {"use_qk_norm", true},
                   {"qk_norm_type", "per_layer"},   {"use_routing_bias", true},
                   {"shared_intermediate_size", 0}, {"tie_word_embeddings", false}};
  CHECK(count_parameters(read_today(m2)).total() == 228'689'748'992);
  const Json step = {
      {"model_type", "step3p7"},       {"num_hidden_layers", 45},    {"hidden_size", 4096},
      {"num_attention_heads", 64},     {"num_key_value_heads", 8},   {"head_dim", 128},
      {"vocab_size", 128896},          {"intermediate_size", 11264}, {"sliding_window", 512},
      {"first_k_dense_replace", 3},    {"num_experts", 288},         {"num_experts_per_tok", 8},
      {"moe_intermediate_size", 1280}, {"share_expert_dim", 1280},   {"n_shared_experts", 1},
      {"use_moe_router_bias", true},   {"rope_theta", 10000}};
  CHECK(count_parameters(read_today(step)).total() == 195'844'496'640);
}

TEST_CASE(
    "a wrapper as transformers 4 wrote it: what it leaves out and what says nothing of the model") {
  const Json gemma = {{"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"head_dim", 128},
                        {"hidden_size", 5376},
                        {"intermediate_size", 21504},
                        {"num_attention_heads", 32},
                        {"num_hidden_layers", 62},
                        {"num_key_value_heads", 16},
                        {"top_k", 50},
                        {"num_beams", 1}}},
                      {"vision_config",
                       {{"hidden_size", 1152},
                        {"image_size", 896},
                        {"intermediate_size", 4304},
                        {"num_attention_heads", 16},
                        {"num_hidden_layers", 27},
                        {"patch_size", 14},
                        {"vision_use_head", false}}}};
  const Model model = read_today(gemma);
  CHECK(model.vocabulary == 262208);
  CHECK(model.ignored_keys.empty());
  CHECK(count_parameters(model).total() == 27'009'346'304);
  CHECK(model.towers[0].parameters == 423'060'336);
}

TEST_CASE("a key to ignore is taken out by name or by path, and listed with what it held") {
  Json config = small("llama", {{"lora_rank", 8}, {"odd_size_per_layer", {1, 2}}});
  CHECK(complaint_of(config).find("--ignore lora_rank reads the config without it") !=
        std::string::npos);
  const Model model = read_today(config, {"lora_rank", "odd_size_per_layer", "absent"});
  CHECK(model.ignored_on_request ==
        std::vector<std::string>{"lora_rank: 8", "odd_size_per_layer: [1,2]"});
  CHECK(model.ignored_keys.empty());
  const Json wrapped = {{"model_type", "wrapper"}, {"text_config", config}};
  CHECK(read_today(wrapped, {"text_config.lora_rank", "odd_size_per_layer"}).ignored_on_request ==
        std::vector<std::string>{"text_config.lora_rank: 8",
                                 "text_config.odd_size_per_layer: [1,2]"});
  CHECK_THROWS_AS(read_today(wrapped, {"vision_config.lora_rank", "odd_size_per_layer"}),
                  InvalidInput);
}

TEST_CASE("sizes of one layer as transformers writes them, and one number of heads for each") {
  const Model model = read_today(small(
      "llama", {{"per_layer_config", {{"1", {{"head_dim", 6}, {"num_key_value_heads", 4}}}}}}));
  CHECK(attention_of(model, 0) == 10 * (12 + 6 + 6 + 12));
  CHECK(attention_of(model, 1) == 10 * (24 + 24 + 24 + 24));
  const Model listed = read_today(small("llama", {{"num_attention_heads_per_layer", {2, 6}}}));
  CHECK(attention_of(listed, 1) == 10 * (18 + 6 + 6 + 18));
  CHECK(complaint_of(small(
            "llama", {{"per_layer_config", {{"2", {{"head_dim", 6}}}, {"0", {{"odd", 1}}}}}})) ==
        "c.json: 'per_layer_config.2' names no layer; allowed: an integer from 0 to 1\n"
        "c.json: 'per_layer_config.0.odd' is not a known key");
}

TEST_CASE("no experts and none a token is a dense model") {
  const Model model =
      read_today(small("llama", {{"num_local_experts", 0}, {"num_experts_per_tok", 0}}));
  CHECK(model.num_moe_layers() == 0);
  CHECK(model.ignored_keys.empty());
}

}  // namespace
}  // namespace piper::model
