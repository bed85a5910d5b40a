// What a family of models implies without its config.json saying so ("Qwen3 normalises q and k a
// head"), as a table. Everything here is a default: a key of the config that states the same thing
// wins. Source: the modeling files of `transformers` 5.23; tests/oracle_parameters.py holds the
// table to them.
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace piper::model {

// Which projections of attention carry a bias.
enum class Biases { kNone, kQueryKeyValue, kAll };

struct FamilyTraits {
  std::string_view model_type;

  // --- attention ---
  Biases bias_when_asked = Biases::kAll;  // what `attention_bias: true` means
  Biases bias_default = Biases::kNone;    // without the key
  bool bias_fixed = false;                // attention_bias is not read
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_by_key = false;       // only when use_qk_norm / qk_layernorm says so
  bool qk_norm_key_default = false;  // ... and its value when absent
  int64_t head_dim = 0;              // when the key is absent; 0 = hidden / heads
  bool output_gate = false;
  bool gate_without_bias = false;  // ... even where queries have one
  bool head_gate = false;          // one gate a head
  bool sinks = false;
  bool sinks_slide = false;      // in sliding layers only
  int64_t sliding_kv_heads = 1;  // key heads of sliding layers, in units of the others'
  int64_t window_period = 0;     // without layer_types: every n-th layer is full ...
  bool first_is_full = false;    // ... and the first one
  bool last_is_full = false;     // whatever layer_types says of it
  bool chunked_without_nope =
      false;  // Llama 4: layers with positions attend in chunks, every fourth has none
  bool windows_alternate = false;  // Gemma 2: without layer_types, even layers slide

  // --- the block ---
  int64_t num_norms = 2;              // weighted norms of the residual stream a layer
  int64_t extra_mixture_norms = 0;    // ... and as many more in a mixture layer
  bool norm_bias = false;             // LayerNorm with bias
  bool parallel_shares_norm = false;  // use_parallel_residual leaves one norm a layer
  bool final_norm = true;
  int64_t num_matrices = 3;     // 3 gate, up, down; 2 up, down
  bool mlp_bias = false;        // when the key is absent
  bool mlp_bias_fixed = false;  // mlp_bias is not read
  bool tied = false;            // when the key is absent
  bool head_bias = false;
  bool head_bias_follows_use_bias = false;
  bool learned_positions = false;
  int64_t ffn_over_hidden = 0;  // feed-forward width when the key is absent, in units of hidden

  // --- mixture ---
  bool normalise_top_k = false;
  Score score = Score::kSoftmax;
  bool selection_bias = false;
  bool selection_bias_is_parameter = false;
  bool router_bias = false;
  bool router_scales = false;
  bool expert_bias = false;
  bool shared_gate = false;
  int64_t shared_experts = 0;  // when no key says how many
  double auxiliary = 0.0;      // router_aux_loss_coef when the key is absent
  int64_t parallel_dense_over_hidden =
      0;                              // Arctic: a dense MLP beside the mixture, in units of hidden
  bool dense_beside = false;          // Gemma 4: one of intermediate_size
  bool mixture_when_enabled = false;  // Gemma 4: experts count where enable_moe_block is true

  // --- positions ---
  double rope_theta = 10000.0;  // when the key is absent
  double rope_partial = 1.0;
};

struct Family {
  FamilyTraits traits;
  bool known = false;   // false: traits are the commonest ones
  std::string refused;  // why models of this type cannot be described; "" = they can
};

// `model_type` as written; a "_text" at its end does not matter.
Family find_family(std::string_view model_type);

// Keys, as a JSON object, whose absence the family's configuration class in `transformers` fills in
// with these values; "{}" = none. Sizes without which there is no model (hidden_size, ...) are not
// among them: their absence is an error. But Gemma 3 was published without its vocabulary and
// heads.
std::string_view absent_keys(std::string_view model_type);

}  // namespace piper::model
