// What becomes of keys that no part of the importer has read.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace piper::model {
namespace {

// Understood, and without effect on shapes, counts or the mathematics of training.
constexpr std::string_view kWithoutEffect[] = {
    "architectures",
    "auto_map",
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "attention_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "resid_pdrop",
    "resid_dropout",
    "embd_pdrop",
    "attn_pdrop",
    "dropout",
    "embedding_dropout",
    "residual_dropout",
    "classifier_dropout",
    "activation_dropout",
    "layerdrop",
    "output_router_logits",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
    "is_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "pretraining_tp",
    "ep_size",
    "quantization_config",
    "compression_config",
    "seq_aux",
    "topk_method",
    "initial_context_length",
    "original_max_position_embeddings",
    "attn_implementation",
    "_attn_implementation",
    "task_specific_params",
    "tokenizer_class",
    "gradient_checkpointing",
    "router_jitter_noise",
    "input_jitter_noise",
    "rotary_dim",
    "num_labels",
    "finetuning_task",
    "torchscript",
    "pruned_heads",
    "prefix",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "use_return_dict",
    "generation_config",
    "enable_expert_tensor_parallelism",
    // These concern generation: transformers 4 wrote them into every part of a config.
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "top_k",
    "top_p",
    "typical_p",
    "temperature",
    "min_length",
    "max_length",
    "length_penalty",
    "repetition_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "ignore_index",
    "mamba_ssm_dtype",
    "mtp_use_dedicated_embeddings",
    "initializer_range",
    "language_model_only",
    "router_dtype",
    "moe_router_dtype",
};

// A part of a key's name that speaks of shapes. Such a key that nobody reads must not pass in
// silence.
constexpr std::string_view kOfShapes[] = {
    "mamba",
    "ssm_",
    "_ssm",
    "lora",
    "cross_attention",
    "zero_expert",
    "expert",
    "altup",
    "laurel",
    "_rank",
    "_heads",
    "head_dim",
    "intermediate_size",
    "hidden_size",
    "_layers",
    "layer_types",
    "conv_",
    "_conv",
    "d_conv",
    "state_size",
    "d_state",
    "expand",
    "ffn_dim",
    "gating",
    "_per_layer",
    "block_configs",
    "attn_layer",
    "num_memory",
    "layers_block_type",
    "hybrid_override_pattern",
    "latent_dim",
    "compress_ratio",
    "n_embd",
    "d_model",
    "attn_type",
    "position_embedding",
    "positional_embedding",
    "alibi",
    "use_bias",
    "_bias",
    "qk_norm",
    "sandwich",
    "sub_norm",
    "type_vocab_size",
    "block_types",
    "lru_width",
    "parallel_attn",
    "new_decoder_architecture",
    "tie_",
    "v_head",
    "hc_mult",
};

// Named like a shape, yet without effect on any.
constexpr std::string_view kNotOfShapes[] = {
    "output_hidden_states",
    "expert_capacity",
    "shared_expert_combination_strategy",
    "moe_expert_capacity",
    "moe_train_capacity_factor",
    "n_ctx",
    "enable_expert_tensor_parallelism",
    "scale_attn_by_inverse_layer_idx",
    "reorder_and_upcast_attn",
    "num_experts_per_tok_warmup",
    "expert_parallel_size",
    "mup_num_layers",
    "use_parallel_embedding",
    "mtp_use_dedicated_embeddings",
    "num_logits_to_keep",
    "rescale_every",
    "use_mamba_kernels",
};

bool listed(std::string_view key, std::span<const std::string_view> list) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// Ends of names that tell what a value is: no shape, whatever stands before.
constexpr std::string_view kEndsOfOthers[] = {
    "_dtype",       "_dropout",     "_dropout_rate",   "_prob",
    "_coef",        "_coeff",       "_loss",           "_eps",
    "_epsilon",     "_std",         "_range",          "_theta",
    "_token_id",    "_token_ids",   "_token_index",    "_multiplier",
    "_interleave",  "_interleaved", "_implementation", "_capacity_factor",
    "_softcap",     "_softcapping", "_scaling",        "_lr",
    "_kernel_impl", "_version",     "_checkpointing",  "_scale",
    "_limit",       "_backend",     "_tolerance",      "_init_value",
    "_init"};

bool speaks_of_shapes(std::string_view key) {
  if (listed(key, kNotOfShapes)) return false;
  for (const std::string_view end : kEndsOfOthers)
    if (key.ends_with(end)) return false;
  return std::any_of(std::begin(kOfShapes), std::end(kOfShapes), [&](std::string_view part) {
    return key.find(part) != std::string_view::npos;
  });
}

// A list with an entry a layer, modules of multi-token prediction counted or not, whose entries
// differ: it says what some layers are, whatever its name. Looked for in objects, too; "" = none.
std::string list_by_layer(const Import& in, const Json& value, const std::string& path) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      if (const std::string found = list_by_layer(in, inner, path + "." + key); !found.empty())
        return found;
    return "";
  }
  constexpr size_t kLeastEntries = 3;  // two are most likely the ends of a range
  if (!value.is_array() || value.size() < kLeastEntries || !in.keys.layers_known()) return "";
  const auto entries = static_cast<int64_t>(value.size());
  const int64_t layers = in.model.num_layers(), modules = in.model.num_next_token_layers;
  const bool is_by_layer =
      entries == layers || (entries >= layers - modules && entries <= layers + modules);
  const bool differs = std::ranges::any_of(value, [&](const Json& e) { return e != value[0]; });
  return is_by_layer && differs ? path : "";
}

// Ids of tokens, and what is switched off or empty: it asks for nothing. A number 0 may be a
// factor.
bool without_effect(const Keys::Unread& unread) {
  static constexpr std::string_view kEmbeddingTable[] = {"_token_id", "_token_ids", "_token_index",
                                                         "_tokens_per_image"};
  if (listed(unread.key, kWithoutEffect)) return true;
  if (!unread.value->is_number() && asks_for_nothing(*unread.value)) return true;
  return std::ranges::any_of(kEmbeddingTable,
                             [&](std::string_view end) { return unread.key.ends_with(end); });
}

// The key of a shape that the config lacks and this one is a typing error of; "" = none.
std::string misspelt(const Import& in, const Keys::Unread& unread) {
  static const std::vector<std::string> kShapes = {"hidden_size",
                                                   "intermediate_size",
                                                   "moe_intermediate_size",
                                                   "num_hidden_layers",
                                                   "num_attention_heads",
                                                   "num_key_value_heads",
                                                   "head_dim",
                                                   "vocab_size",
                                                   "num_experts",
                                                   "num_local_experts",
                                                   "n_routed_experts",
                                                   "n_shared_experts",
                                                   "num_experts_per_tok",
                                                   "shared_expert_intermediate_size",
                                                   "first_k_dense_replace",
                                                   "q_lora_rank",
                                                   "kv_lora_rank",
                                                   "qk_nope_head_dim",
                                                   "qk_rope_head_dim",
                                                   "v_head_dim",
                                                   "tie_word_embeddings",
                                                   "decoder_sparse_step",
                                                   "mlp_only_layers"};
  if (unread.outside) return "";
  const std::string meant = nearest(unread.key, kShapes);
  return meant.empty() || in.keys.has({meant.c_str()}) ? "" : meant;
}

}  // namespace

bool asks_for_nothing(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_structured() && value.empty();
}

void sort_unread_keys(Import& in) {
  for (const Keys::Unread& unread : in.keys.unread()) {
    if (unread.value->is_null() || without_effect(unread)) continue;
    if (!unread.outside && speaks_of_shapes(unread.key) && !asks_for_nothing(*unread.value))
      in.keys.problems()->add(
          unread.path, fmt::format("is {}; it may change the model's shapes and is not supported; "
                                   "--ignore {} reads the config without it",
                                   quote(*unread.value), unread.key));
    else if (const std::string list =
                 unread.outside ? "" : list_by_layer(in, *unread.value, unread.path);
             !list.empty())
      in.keys.problems()->add(
          list, fmt::format("has an entry for each layer, and they differ, but is not understood; "
                            "--ignore {} reads the config without it",
                            unread.key));
    else if (const std::string meant = misspelt(in, unread); !meant.empty())
      in.keys.problems()->add(unread.path,
                              fmt::format("is not understood; did you mean '{}'?", meant));
    else
      in.model.ignored_keys.push_back(unread.path);
  }
}

}  // namespace piper::model
