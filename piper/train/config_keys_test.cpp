// Whether a run can go on with another config than it began with: every key of a config is changed,
// one at a time, and either the change is refused or what is trained is the same to the bit.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_names.h>
#include <piper/checkpoint/model_fingerprint.h>
#include <piper/model/import.h>
#include <piper/model/trainable.h>
#include <testing/train/equivalence_run.h>

#include <string>
#include <vector>

namespace piper::train {
namespace {

using testing::kSequence;
using testing::kVocabulary;

// Every family that trains has one here, with every key that its importer reads.
const std::vector<const char*> kConfigs = {
    R"({"model_type": "mixtral", "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32,
  "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false, "hidden_act": "silu",
  "sliding_window": null, "router_aux_loss_coef": 0.02, "initializer_range": 0.2,
  "attention_dropout": 0.0, "torch_dtype": "float32", "bos_token_id": 1, "use_cache": true,
  "output_router_logits": false, "router_jitter_noise": 0.0,
  "rope_scaling": {"rope_type": "linear", "factor": 2.0}})",
    R"({"model_type": "qwen3_moe", "hidden_size": 16, "intermediate_size": 20,
  "moe_intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 32, "num_experts": 4,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [0], "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
  "use_sliding_window": false, "router_aux_loss_coef": 0.02, "initializer_range": 0.2,
  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})",
    R"({"model_type": "qwen2_moe", "hidden_size": 16, "intermediate_size": 20,
  "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "num_experts": 4,
  "num_experts_per_tok": 2, "norm_topk_prob": false, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
  "qkv_bias": true, "tie_word_embeddings": false, "hidden_act": "silu",
  "router_aux_loss_coef": 0.02, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1,
    "attention_factor": 1.1, "truncate": false}})",
    R"({"model_type": "olmoe", "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "num_experts": 4,
  "num_experts_per_tok": 2, "norm_topk_prob": false, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "rope_theta": 1e4, "clip_qkv": null, "tie_word_embeddings": false,
  "hidden_act": "silu", "router_aux_loss_coef": 0.02, "attention_bias": false})",
    R"({"model_type": "deepseek_v3", "hidden_size": 16, "intermediate_size": 20,
  "moe_intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 4, "vocab_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
  "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "topk_method": "noaux_tc",
  "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 12, "kv_lora_rank": 8,
  "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6, "rope_interleave": true,
  "aux_loss_alpha": 0.001, "seq_aux": true, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "rope_theta": 1e4, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
  "hidden_act": "silu", "attention_bias": false, "rope_scaling": {"type": "yarn", "factor": 4.0,
    "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "mscale_all_dim": 0.8}})"};

std::vector<Json> other_values(const Json& value) {
  if (value.is_boolean()) return {!value.get<bool>()};
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    return {number + 1, number * 2, number - 1};
  }
  if (value.is_number()) {
    const auto number = value.get<double>();
    return {number * 2, number + 0.25, number / 3};
  }
  if (value.is_string())
    return {"none",   "linear",  "llama3",  "yarn",      "gelu",        "softmax",
            "greedy", "mixtral", "mistral", "qwen2_moe", "deepseek_v2", "bfloat16"};
  if (value.is_array()) return {Json::array(), Json::array({0}), Json::array({1})};
  return {1, 4, true, 0.5};  // null
}

// The same weights for every model, whatever its initialiser: a run that goes on has the saved
// ones.
void fill(nn::Stage& stage) {
  double number = 0;
  for (const nn::NamedPiece& piece : stage.named_pieces()) {
    at::Tensor value = piece.value;
    const at::Tensor index = at::arange(value.numel(), value.options()).view(value.sizes());
    value.copy_((index * 1.7 + ++number).sin() * 0.3);
  }
}

testing::Trained trained(const model::Model& model) {
  return testing::run_training(
      model,
      testing::strategy_for(model, {}, strategy::PipelineSchedule::k1F1B,
                            strategy::Recompute::kNone, strategy::Precision::kFp64),
      2, fill);
}

std::vector<std::pair<std::string, std::vector<int64_t>>> tensors_of(const model::Model& model) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> all;
  for (const checkpoint::TensorShape& tensor : checkpoint::expected_tensors(model))
    all.emplace_back(tensor.name, tensor.shape);
  return all;
}

// One config, its model, and what training it gives.
struct Begun {
  Json config;
  model::Model model;
  std::string fingerprint;
  testing::Trained result;
};

struct Counts {
  int refused = 0, same = 0;
};

void check_change(const Begun& begun, const Json::json_pointer& key, const Json& value,
                  Counts& counts) {
  Json config = begun.config;
  if (config[key] == value) return;
  config[key] = value;
  INFO(begun.model.family, ": ", key.to_string(), " ", value.dump());
  model::Model changed;
  try {
    changed = model::import_config(config, "config.json");
  } catch (const InvalidInput&) {
    ++counts.refused;
    return;
  }
  if (!model::untrainable(changed, kSequence).empty() ||
      !checkpoint::has_fingerprint(changed, begun.fingerprint) ||
      tensors_of(changed) != tensors_of(begun.model)) {
    ++counts.refused;
    return;
  }
  ++counts.same;
  const testing::Trained other = trained(changed);
  CHECK(other.losses == begun.result.losses);
  CHECK(other.norms == begun.result.norms);
  CHECK(testing::num_differing(other, begun.result) == 0);
}

std::vector<Json::json_pointer> keys_of(const Json& config) {
  std::vector<Json::json_pointer> keys;
  for (const auto& [key, value] : config.items()) {
    const Json::json_pointer at = Json::json_pointer() / key;
    if (!value.is_object()) {
      keys.push_back(at);
      continue;
    }
    for (const auto& [inner, of] : value.items()) keys.push_back(at / inner);
  }
  return keys;
}

}  // namespace

TEST_CASE("a changed key of a config is refused by a checkpoint, or trains the same to the bit") {
  for (const char* text : kConfigs) {
    Begun begun{.config = parse_json(text, "config")};
    begun.model = model::import_config(begun.config, "config.json");
    REQUIRE(model::untrainable(begun.model, kSequence) == std::vector<std::string>{});
    REQUIRE(begun.model.vocabulary == kVocabulary);
    begun.fingerprint = checkpoint::model_fingerprint(begun.model);
    begun.result = trained(begun.model);
    Counts counts;
    for (const Json::json_pointer& key : keys_of(begun.config))
      for (const Json& value : other_values(begun.config[key]))
        check_change(begun, key, value, counts);
    MESSAGE(begun.model.family << ": " << counts.refused << " changes refused, " << counts.same
                               << " train the same");
    CHECK(counts.refused > 20);  // else the configs hold too little
    CHECK(counts.same >= 3);
  }
}

}  // namespace piper::train
