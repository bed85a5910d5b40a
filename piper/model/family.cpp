#include <piper/model/family.h>

#include <array>
#include <utility>

namespace piper::model {
namespace {

constexpr auto kPerHead = QkNorm::kPerHead;
constexpr auto kFull = QkNorm::kFull;
constexpr auto kQkv = Biases::kQueryKeyValue;
constexpr auto kAll = Biases::kAll;
constexpr auto kSigmoid = Score::kSigmoid;

// What DeepSeek-V3 and its descendants share.
constexpr FamilyTraits sigmoid_router(std::string_view model_type) {
  return {
      .model_type = model_type, .normalise_top_k = true, .score = kSigmoid, .selection_bias = true};
}

constexpr FamilyTraits sparse_attention(std::string_view model_type) {
  FamilyTraits traits = sigmoid_router(model_type);
  traits.mlp_bias_fixed = true;
  return traits;
}

// clang-format off
constexpr FamilyTraits kFamilies[] = {
    // --- mixtures ---
    {.model_type = "mixtral", .normalise_top_k = true, .auxiliary = 0.001, .rope_theta = 1e6},
    {.model_type = "qwen2_moe", .bias_when_asked = kQkv, .bias_default = kQkv, .bias_fixed = true,
     .shared_gate = true, .auxiliary = 0.001},
    {.model_type = "qwen3_moe", .qk_norm = kPerHead, .auxiliary = 0.001},
    {.model_type = "qwen3_vl_moe", .qk_norm = kPerHead, .normalise_top_k = true, .auxiliary = 0.001},
    {.model_type = "qwen3_next", .qk_norm = kPerHead, .head_dim = 256, .output_gate = true, .normalise_top_k = true,
     .shared_gate = true, .auxiliary = 0.001, .rope_partial = 0.25},
    {.model_type = "qwen3_5_moe", .qk_norm = kPerHead, .head_dim = 256, .output_gate = true, .normalise_top_k = true,
     .shared_gate = true, .auxiliary = 0.001, .rope_partial = 0.25},
    {.model_type = "qwen3_5", .qk_norm = kPerHead, .head_dim = 256, .output_gate = true, .rope_partial = 0.25},
    {.model_type = "olmoe", .qk_norm = kFull, .auxiliary = 0.01},
    {.model_type = "flex_olmo", .qk_norm = kFull, .auxiliary = 0.01, .rope_theta = 5e5},
    {.model_type = "deepseek"},
    {.model_type = "deepseek_v2"},
    sigmoid_router("deepseek_v3"),
    sparse_attention("deepseek_v32"),
    sigmoid_router("kimi_k2"),
    sigmoid_router("glm4_moe_lite"),
    sparse_attention("glm_moe_dsa"),
    {.model_type = "glm4_moe", .bias_when_asked = kQkv, .qk_norm = kPerHead, .qk_norm_by_key = true,
     .normalise_top_k = true, .score = kSigmoid, .selection_bias = true, .rope_partial = 0.5},
    {.model_type = "solar_open", .bias_when_asked = kQkv, .qk_norm = kPerHead, .qk_norm_by_key = true,
     .normalise_top_k = true, .score = kSigmoid, .selection_bias = true, .rope_theta = 1e6},
    {.model_type = "dots1", .qk_norm = kPerHead, .normalise_top_k = true, .score = kSigmoid, .selection_bias = true},
    {.model_type = "exaone_moe", .qk_norm = kPerHead, .normalise_top_k = true, .score = kSigmoid,
     .selection_bias = true},
    {.model_type = "hy_v3", .qk_norm = kPerHead, .head_dim = 128, .normalise_top_k = true, .score = kSigmoid,
     .selection_bias = true, .rope_theta = 11158840.0},
    {.model_type = "mellum", .qk_norm = kPerHead, .head_dim = 128, .normalise_top_k = true, .auxiliary = 0.001},
    {.model_type = "minimax_m2", .qk_norm = kFull, .normalise_top_k = true, .score = kSigmoid, .selection_bias = true,
     .auxiliary = 0.001, .rope_theta = 5e6},
    {.model_type = "minimax_m3", .qk_norm = kPerHead, .head_dim = 128, .normalise_top_k = true, .score = kSigmoid,
     .selection_bias = true, .auxiliary = 0.001, .rope_theta = 5e6, .rope_partial = 0.5},
    {.model_type = "minimax_m3_vl", .qk_norm = kPerHead, .head_dim = 128, .normalise_top_k = true, .score = kSigmoid,
     .selection_bias = true, .auxiliary = 0.001, .rope_theta = 5e6, .rope_partial = 0.5},
    {.model_type = "step3p5", .qk_norm = kPerHead, .head_dim = 128, .head_gate = true, .normalise_top_k = true,
     .score = kSigmoid, .selection_bias = true},
    {.model_type = "step3p7", .qk_norm = kPerHead, .head_dim = 128, .head_gate = true, .normalise_top_k = true,
     .score = kSigmoid, .selection_bias = true},
    {.model_type = "laguna", .qk_norm = kPerHead, .head_dim = 128, .gate_without_bias = true, .head_gate = true,
     .normalise_top_k = true, .score = kSigmoid, .selection_bias = true, .selection_bias_is_parameter = true, .auxiliary = 0.001},
    {.model_type = "mimo_v2_flash", .bias_when_asked = kQkv, .head_dim = 192, .sinks_slide = true, .sliding_kv_heads = 2, .window_period = 6,
     .first_is_full = true, .normalise_top_k = true, .score = kSigmoid, .selection_bias = true,
     .rope_theta = 5e6, .rope_partial = 0.334},
    {.model_type = "gemma4", .qk_norm = kPerHead, .head_dim = 256, .window_period = 6, .last_is_full = true,
     .num_norms = 4, .extra_mixture_norms = 3, .tied = true, .normalise_top_k = true, .router_scales = true,
     .dense_beside = true, .mixture_when_enabled = true, .rope_theta = 1e6},
    {.model_type = "gemma4_unified", .qk_norm = kPerHead, .head_dim = 256, .window_period = 6, .last_is_full = true,
     .num_norms = 4, .extra_mixture_norms = 3, .tied = true, .normalise_top_k = true, .router_scales = true,
     .dense_beside = true, .mixture_when_enabled = true, .rope_theta = 1e6},
    {.model_type = "afmoe", .qk_norm = kPerHead, .head_dim = 128, .output_gate = true, .gate_without_bias = true,
     .num_norms = 4,     .normalise_top_k = true, .score = kSigmoid, .selection_bias = true, .selection_bias_is_parameter = true},
    {.model_type = "ernie4_5_moe", .tied = true, .head_bias_follows_use_bias = true, .normalise_top_k = true, .selection_bias = true,
     .selection_bias_is_parameter = true, .auxiliary = 0.001, .rope_theta = 5e5},
    {.model_type = "gpt_oss", .bias_default = kAll, .head_dim = 64, .sinks = true, .normalise_top_k = true,
     .router_bias = true, .expert_bias = true, .auxiliary = 0.001, .rope_theta = 150000.0},
    {.model_type = "llama4", .qk_norm = QkNorm::kUnweighted, .qk_norm_by_key = true, .qk_norm_key_default = true,
     .head_dim = 128, .chunked_without_nope = true, .score = kSigmoid, .shared_experts = 1, .auxiliary = 0.001,
     .rope_theta = 5e5},
    {.model_type = "granitemoe", .normalise_top_k = true, .auxiliary = 0.001},
    {.model_type = "granitemoeshared", .normalise_top_k = true, .auxiliary = 0.001},
    {.model_type = "granitemoe_swa", .sinks = true, .normalise_top_k = true, .auxiliary = 0.001},
    {.model_type = "phimoe", .norm_bias = true, .auxiliary = 0.001, .rope_theta = 1e6},
    {.model_type = "hunyuan_v1_moe", .qk_norm = kPerHead, .normalise_top_k = true, .shared_experts = 1},
    {.model_type = "aria", .normalise_top_k = true},
    {.model_type = "cohere2_moe", .num_norms = 1, .tied = true, .normalise_top_k = true},
    {.model_type = "axk1", .extra_mixture_norms = 1, .normalise_top_k = true, .score = kSigmoid, .selection_bias = true},
    {.model_type = "kolibri1", .qk_norm = kPerHead, .head_dim = 128, .num_norms = 4},
    {.model_type = "flint", .qk_norm = kPerHead, .sinks = true, .auxiliary = 0.0005},
    {.model_type = "dbrx", .normalise_top_k = true, .auxiliary = 0.01},
    {.model_type = "arctic", .num_norms = 3, .normalise_top_k = true, .auxiliary = 0.001,
     .parallel_dense_over_hidden = 1},
    // --- dense ---
    {.model_type = "llama"},
    {.model_type = "mistral"},
    {.model_type = "ministral"},
    {.model_type = "ministral3"},
    {.model_type = "qwen2", .bias_when_asked = kQkv, .bias_default = kQkv, .bias_fixed = true},
    {.model_type = "qwen2_vl", .bias_when_asked = kQkv, .bias_default = kQkv, .bias_fixed = true},
    {.model_type = "qwen2_5_vl", .bias_when_asked = kQkv, .bias_default = kQkv, .bias_fixed = true},
    {.model_type = "qwen3", .qk_norm = kPerHead, .head_dim = 128},
    {.model_type = "qwen3_vl", .qk_norm = kPerHead, .head_dim = 128},
    {.model_type = "gemma", .head_dim = 256, .tied = true},
    {.model_type = "gemma2", .head_dim = 256, .windows_alternate = true, .num_norms = 4, .tied = true},
    {.model_type = "gemma3", .qk_norm = kPerHead, .head_dim = 256, .num_norms = 4, .tied = true, .rope_theta = 1e6},
    {.model_type = "vaultgemma", .head_dim = 256, .windows_alternate = true, .tied = true},
    {.model_type = "glm", .bias_when_asked = kQkv, .bias_default = kQkv, .head_dim = 128, .rope_partial = 0.5},
    {.model_type = "glm4", .bias_when_asked = kQkv, .bias_default = kQkv, .head_dim = 128, .num_norms = 4,
     .rope_partial = 0.5},
    {.model_type = "glm4v", .bias_when_asked = kQkv, .bias_default = kQkv, .num_norms = 4, .rope_partial = 0.5},
    {.model_type = "glm46v", .bias_when_asked = kQkv, .bias_default = kQkv, .num_norms = 4, .rope_partial = 0.5},
    {.model_type = "glm_ocr", .num_norms = 4},
    {.model_type = "qwen2_5_omni", .bias_when_asked = kQkv, .bias_default = kQkv, .bias_fixed = true},
    {.model_type = "cosmos3_edge", .num_matrices = 2},
    {.model_type = "olmo", .num_norms = 0, .final_norm = false},
    {.model_type = "olmo2", .qk_norm = kFull},
    {.model_type = "olmo3", .qk_norm = kFull},
    {.model_type = "exaone4", .qk_norm = kPerHead},
    {.model_type = "ernie4_5", .head_dim = 128, .tied = true, .rope_theta = 5e5},
    {.model_type = "smollm3", .tied = true, .rope_theta = 2e6},
    {.model_type = "seed_oss", .bias_when_asked = kQkv, .bias_default = kQkv, .head_dim = 128},
    {.model_type = "phi3"},
    {.model_type = "phi", .bias_default = kAll, .num_norms = 1, .norm_bias = true, .num_matrices = 2, .mlp_bias = true,
     .head_bias = true, .rope_partial = 0.5},
    {.model_type = "starcoder2", .bias_default = kAll, .norm_bias = true, .num_matrices = 2, .mlp_bias = true,
     .tied = true},
    {.model_type = "stablelm", .bias_when_asked = kQkv, .qk_norm = kFull, .qk_norm_by_key = true, .norm_bias = true,
     .parallel_shares_norm = true, .rope_partial = 0.25},
    {.model_type = "cohere", .qk_norm = kFull, .qk_norm_by_key = true, .num_norms = 1, .tied = true},
    {.model_type = "cohere2", .num_norms = 1, .tied = true},
    {.model_type = "granite"},
    {.model_type = "granite_swa", .sinks = true, .tied = true},
    {.model_type = "arcee", .num_matrices = 2},
    {.model_type = "nemotron", .norm_bias = true, .num_matrices = 2, .rope_partial = 0.5},
    {.model_type = "jais2", .bias_default = kAll, .norm_bias = true, .num_matrices = 2, .mlp_bias = true},
    {.model_type = "helium", .bias_when_asked = kQkv, .head_dim = 128},
    {.model_type = "hunyuan_v1_dense", .qk_norm = kPerHead},
    {.model_type = "hyperclovax"},
    {.model_type = "internlm3"},
    {.model_type = "iquestcoder"},
    {.model_type = "cwm", .head_dim = 128},
    {.model_type = "nanochat", .qk_norm = QkNorm::kUnweighted, .num_norms = 0, .final_norm = false, .num_matrices = 2},
    {.model_type = "youtu", .tied = true},
    {.model_type = "minicpm3", .tied = true},
    {.model_type = "gpt2", .bias_default = kAll, .norm_bias = true, .num_matrices = 2, .mlp_bias = true, .tied = true,
     .learned_positions = true, .ffn_over_hidden = 4},
    {.model_type = "gpt_neox", .bias_default = kAll, .norm_bias = true, .num_matrices = 2, .mlp_bias = true,
     .rope_partial = 0.25},
};
// clang-format on

struct RefusedFamily {
  std::string_view model_type;
  std::string_view why;
};

// Their keys alone would be read as something simpler.
constexpr RefusedFamily kRefused[] = {
    {"jetmoe", "its attention is a mixture of experts too"},
    {"bitnet", "attention and feed-forward have norms inside"},
    {"apertus", "its activation has parameters"},
    {"diffllama", "differential attention"},
    {"doge", "dynamic mask attention and weighted residuals"},
    {"beam", "a parametric gate in attention and low-rank tables"},
    {"olmo_hybrid", "linear attention of another shape than the gated delta net's"},
    {"kimi_linear", "linear attention of another shape than the gated delta net's"},
    {"bailing_hybrid", "linear attention of another shape than the gated delta net's"},
    {"minimax", "lightning attention"},
    {"minimax_text_01", "lightning attention"},
    {"recurrent_gemma", "recurrent layers"},
    {"lfm2", "short convolutions in place of attention"},
    {"lfm2_moe", "short convolutions in place of attention"},
    {"deepseek_v4", "attention to compressed keys, and several residual streams"},
    {"gemma3n", "several residual streams and low-rank layers beside attention"},
    {"longcat_flash", "two attentions a layer and experts without weights"},
    {"mllama", "attention to images inside the language model"},
    {"mllama_text_model", "attention to images inside the language model"},
    {"mpt", "ALiBi positions and norms without biases"},
    {"opt", "a learned position table with an offset"},
    {"xglm", "fixed positions of sines"},
    {"ctrl", "fixed positions of sines"},
    {"openai-gpt", "norms after attention and feed-forward"},
    {"cpmant", "learned biases of relative positions"},
    {"gpt_neox_japanese", "one bias of attention's output in the last layer alone"},
    {"modernbert-decoder", "norms without biases and a head of several layers"},
    {"trocr", "attention to an encoder's images"},
    {"blt", "a byte encoder and decoder around the language model"},
    {"zaya", "attention with convolutions, and a router of several layers"},
    {"hrm", "two stacks of layers that run in turns"},
    {"muse_glimmer", "a gate of attention that its config does not mention"},
    {"openelm", "layers whose widths follow multipliers"},
    {"persimmon", "norms with biases on queries and keys"},
    {"moshi", "several heads and codebooks"},
    {"bloom", "ALiBi positions and a norm on the embedding"},
    {"falcon", "fused multi-query projections and parallel blocks"},
    {"gpt_bigcode", "fused multi-query projections"},
    {"gptj", "parallel blocks with biases on one half only"},
    {"codegen", "parallel blocks with biases on one half only"},
    {"gpt_neo", "biases on the output projection only"},
    {"biogpt", "a learned position table with an offset"},
    {"bert-generation", "an encoder with a learned position table"},
    {"phi4_multimodal", "image and audio encoders and adapters inside the language model"},
    {"git", "an image encoder inside the language model"},
};

// Registered as causal language models too, and encoders all the same.
constexpr std::string_view kEncoders[] = {
    "albert",         "bert",          "big_bird",      "camembert",  "clip_text_model",
    "convbert",       "data2vec-text", "deberta",       "deberta-v2", "distilbert",
    "electra",        "ernie",         "esm",           "eurobert",   "flaubert",
    "longformer",     "luke",          "megatron-bert", "mobilebert", "modernbert",
    "mpnet",          "nomic_bert",    "rembert",       "roberta",    "roberta-prelayernorm",
    "roc_bert",       "roformer",      "t5_encoder",    "xlm",        "xlm-roberta",
    "xlm-roberta-xl", "xlnet",         "xmod"};

struct AbsentKeys {
  std::string_view model_type, keys;
};

// clang-format off
constexpr AbsentKeys kAbsentKeys[] = {
    {"mixtral", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5})"},
    {"qwen2_moe", R"({"num_key_value_heads": 16, "shared_expert_intermediate_size": 5632})"},
    {"qwen3_moe", R"({"num_key_value_heads": 4})"},
    {"qwen3_next", R"({"num_key_value_heads": 2, "shared_expert_intermediate_size": 512, "full_attention_interval": 4})"},
    {"qwen3_5_moe", R"({"num_key_value_heads": 2, "shared_expert_intermediate_size": 512})"},
    {"qwen3_5", R"({"num_key_value_heads": 4})"},
    {"olmoe", R"({"rms_norm_eps": 1e-5})"},
    {"deepseek_v2", R"({"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "n_shared_experts": 2})"},
    {"deepseek_v3", R"({"num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8,
      "topk_group": 4, "routed_scaling_factor": 2.5})"},
    {"deepseek_v32", R"({"num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8,
      "topk_group": 4, "routed_scaling_factor": 2.5, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048})"},
    {"glm4_moe_lite", R"({"num_key_value_heads": 20, "rms_norm_eps": 1e-5, "q_lora_rank": 768, "kv_lora_rank": 512,
      "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8})"},
    {"glm_moe_dsa", R"({"num_key_value_heads": 64, "rms_norm_eps": 1e-5, "q_lora_rank": 2048, "kv_lora_rank": 512,
      "n_shared_experts": 1, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "index_n_heads": 32})"},
    {"glm4_moe", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "n_shared_experts": 1,
      "first_k_dense_replace": 1})"},
    {"solar_open", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "n_shared_experts": 1, "head_dim": 128})"},
    {"dots1", R"({"num_key_value_heads": 32})"},
    {"exaone_moe", R"({"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "num_shared_experts": 1,
      "first_k_dense_replace": 1, "routed_scaling_factor": 2.5})"},
    {"hy_v3", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_shared_experts": 1, "first_k_dense_replace": 1})"},
    {"mellum", R"({"num_key_value_heads": 4})"},
    {"minimax_m2", R"({"num_key_value_heads": 8, "head_dim": 128})"},
    {"minimax_m3", R"({"num_key_value_heads": 4, "shared_intermediate_size": 3072})"},
    {"minimax_m3_vl", R"({"num_key_value_heads": 4, "shared_intermediate_size": 3072, "index_n_heads": 4,
      "index_head_dim": 128, "index_topk_blocks": 16, "index_block_size": 128})"},
    {"step3p5", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "share_expert_dim": 1280, "first_k_dense_replace": 3})"},
    {"step3p7", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "share_expert_dim": 1280, "first_k_dense_replace": 3})"},
    {"laguna", R"({"num_key_value_heads": 8, "shared_expert_intermediate_size": 512, "first_k_dense_replace": 1})"},
    {"mimo_v2_flash", R"({"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "v_head_dim": 128, "sliding_window": 129,
      "first_k_dense_replace": 1})"},
    {"gemma4", R"({"num_key_value_heads": 4, "sliding_window": 512, "global_head_dim": 512,
      "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144})"},
    {"gemma4_unified", R"({"num_key_value_heads": 4, "sliding_window": 512, "global_head_dim": 512})"},
    {"afmoe", R"({"rms_norm_eps": 1e-5, "num_shared_experts": 2, "num_dense_layers": 1})"},
    {"ernie4_5_moe", R"({"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "moe_num_shared_experts": 2,
      "moe_layer_start_index": 1})"},
    {"gpt_oss", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5})"},
    {"llama4", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5})"},
    {"phimoe", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5})"},
    {"hunyuan_v1_moe", R"({"rms_norm_eps": 1e-5})"},
    {"aria", R"({"moe_num_shared_experts": 2})"},
    {"cohere2_moe", R"({"layer_norm_eps": 1e-5, "head_dim": 128})"},
    {"axk1", R"({"num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5})"},
    {"kolibri1", R"({"num_key_value_heads": 4, "shared_expert_intermediate_size": 512})"},
    {"flint", R"({"num_key_value_heads": 4, "shared_expert_intermediate_size": 1024, "head_dim": 128,
      "mlp_only_layers": [0, 1]})"},
    {"mistral", R"({"num_key_value_heads": 8, "sliding_window": 4096})"},
    {"ministral", R"({"num_key_value_heads": 8, "sliding_window": 4096})"},
    {"ministral3", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "head_dim": 128})"},
    {"qwen2", R"({"num_key_value_heads": 32})"},
    {"qwen3", R"({"num_key_value_heads": 32})"},
    {"gemma", R"({"num_key_value_heads": 16})"},
    {"gemma2", R"({"num_key_value_heads": 4, "sliding_window": 4096})"},
    {"gemma3", R"({"num_key_value_heads": 4, "num_attention_heads": 8, "vocab_size": 262208})"},
    {"vaultgemma", R"({"num_key_value_heads": 4, "sliding_window": 4096})"},
    {"glm", R"({"num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7})"},
    {"glm4", R"({"num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7})"},
    {"olmo2", R"({"rms_norm_eps": 1e-5})"},
    {"olmo3", R"({"rms_norm_eps": 1e-5})"},
    {"exaone4", R"({"num_key_value_heads": 32, "rms_norm_eps": 1e-5})"},
    {"ernie4_5", R"({"num_key_value_heads": 2, "rms_norm_eps": 1e-5})"},
    {"smollm3", R"({"num_key_value_heads": 4})"},
    {"seed_oss", R"({"num_key_value_heads": 8})"},
    {"phi3", R"({"rms_norm_eps": 1e-5})"},
    {"phi", R"({"layer_norm_eps": 1e-5})"},
    {"starcoder2", R"({"num_key_value_heads": 2, "norm_epsilon": 1e-5})"},
    {"stablelm", R"({"num_key_value_heads": 32, "layer_norm_eps": 1e-5})"},
    {"cohere", R"({"layer_norm_eps": 1e-5})"},
    {"cohere2", R"({"layer_norm_eps": 1e-5, "sliding_window": 4096})"},
    {"granite_swa", R"({"num_key_value_heads": 4, "rms_norm_eps": 1e-5, "sliding_window": 128})"},
    {"arcee", R"({"rms_norm_eps": 1e-5})"},
    {"nemotron", R"({"norm_eps": 1e-5})"},
    {"jais2", R"({"layer_norm_eps": 1e-5})"},
    {"helium", R"({"num_key_value_heads": 20, "rms_norm_eps": 1e-8})"},
    {"hunyuan_v1_dense", R"({"rms_norm_eps": 1e-5})"},
    {"internlm3", R"({"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "head_dim": 128})"},
    {"iquestcoder", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "head_dim": 128})"},
    {"cwm", R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-5})"},
    {"youtu", R"({"num_key_value_heads": 16, "q_lora_rank": 1536, "kv_lora_rank": 512})"},
    {"minicpm3", R"({"num_key_value_heads": 40, "rms_norm_eps": 1e-5, "q_lora_rank": 768, "kv_lora_rank": 256})"},
    {"gpt2", R"({"layer_norm_epsilon": 1e-5})"},
    {"gpt_neox", R"({"layer_norm_eps": 1e-5})"},
};
// clang-format on

std::string_view without_text(std::string_view model_type) {
  constexpr std::string_view kText = "_text";
  if (model_type.ends_with(kText)) model_type.remove_suffix(kText.size());
  return model_type;
}

}  // namespace

std::string_view absent_keys(std::string_view model_type) {
  for (const AbsentKeys& family : kAbsentKeys)
    if (family.model_type == without_text(model_type)) return family.keys;
  return "{}";
}

Family find_family(std::string_view model_type) {
  model_type = without_text(model_type);
  for (const FamilyTraits& traits : kFamilies)
    if (traits.model_type == model_type) return {traits, true, ""};
  for (const RefusedFamily& refused : kRefused)
    if (refused.model_type == model_type) return {{}, true, std::string(refused.why)};
  for (const std::string_view encoder : kEncoders)
    if (encoder == model_type) return {{}, true, "an encoder, and no causal language model"};
  return {};
}

}  // namespace piper::model
