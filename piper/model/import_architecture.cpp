// Architectures that Piper does not have: one sentence, in place of a list of keys that mean
// nothing here.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace piper::model {
namespace {

constexpr std::string_view kStateSpace = "state-space (Mamba) layers";
constexpr std::string_view kOtherLinear =
    "linear attention of another shape than the gated delta net's";
constexpr std::string_view kConvolutions = "short convolutions in place of attention";
constexpr std::string_view kRecurrent = "recurrent layers";

// A word that a name, a key or a type of layer holds, and what it tells.
struct Sign {
  std::string_view word, what;
};

constexpr Sign kNames[] = {
    {"mamba", kStateSpace},
    {"jamba", kStateSpace},
    {"zamba", kStateSpace},
    {"bamba", kStateSpace},
    {"nemotron_h", kStateSpace},
    {"falcon_h", kStateSpace},
    {"rwkv", "RWKV's recurrent layers"},
    {"xlstm", "recurrent (xLSTM) layers"},
    {"retnet", "retention in place of attention"},
    {"hyena", "long convolutions in place of attention"},
};

// A key that only such a model has; at its beginning.
constexpr Sign kKeys[] = {
    {"mamba_", kStateSpace},
    {"ssm_", kStateSpace},
    {"d_state", kStateSpace},
    {"state_size", kStateSpace},
    {"hybrid_override_pattern", kStateSpace},
    {"linear_attn_config", kOtherLinear},
    {"linear_attention_", kOtherLinear},
    {"lightning_", kOtherLinear},
    {"attn_type_list", kOtherLinear},
    {"rwkv", "RWKV's recurrent layers"},
    {"conv_L_cache", kConvolutions},
    {"lru_width", kRecurrent},
    {"block_configs",
     "layers that a search made unlike each other, some of them without attention"},
    {"altup_", "alternating updates (AltUp) of several residual streams"},
    {"hc_mult", "hyper-connections: several residual streams"},
    {"compress_ratios", "attention to compressed keys"},
    {"compress_rates", "attention to compressed keys"},
};

constexpr Sign kTypes[] = {
    {"mamba", kStateSpace},
    {"ssm", kStateSpace},
    {"conv", kConvolutions},
    {"recurrent", kRecurrent},
    {"rwkv", kRecurrent},
    {"linear", kOtherLinear},
    {"lightning", kOtherLinear},
    {"kda", kOtherLinear},
    {"compressed", "attention to compressed keys"},
    {"hybrid", "layers that mix attention with another kind of memory"},
};

constexpr Spellings kLayerTypes = {"layer_types", "layers_block_type", "block_types",
                                   "layer_block_types"};

// Keys of the gated delta net, which Piper has, that bear a Mamba name (Qwen3.5).
constexpr std::string_view kInnocent[] = {"mamba_ssm_dtype"};

std::string_view told_by_name(std::string_view model_type) {
  for (const Sign& sign : kNames)
    if (model_type.find(sign.word) != std::string_view::npos) return sign.what;
  return "";
}

std::string_view told_by_type(const std::string& type, bool has_delta) {
  if (has_delta && type == "linear_attention") return "";
  for (const Sign& sign : kTypes)
    if (type.find(sign.word) != std::string::npos) return sign.what;
  return "";
}

void refuse(Import& in, const std::string& path, const Json& value, std::string_view what) {
  const std::string shown =
      value.is_string() ? fmt::format("'{}'", value.get<std::string>()) : quote(value);
  in.keys.problems()->add(path, fmt::format("is {}, which Piper cannot describe: {}", shown, what));
  in.keys.problems()->finish();
}

void refuse_layer_types(Import& in) {
  const bool has_delta = in.keys.has({"linear_num_value_heads"});
  for (const char* key : kLayerTypes) {
    const Json* types = in.keys.given({key});
    if (types == nullptr || !types->is_array()) continue;
    for (size_t i = 0; i < types->size(); ++i) {
      if (!(*types)[i].is_string()) continue;
      const std::string_view what = told_by_type((*types)[i].get<std::string>(), has_delta);
      if (!what.empty())
        refuse(in, fmt::format("{}[{}]", in.keys.path({key}), i), (*types)[i], what);
    }
  }
}

// MiniMax: 1 is attention to all keys, 0 the lightning kind. import_windows() reads the former.
bool lists_full_attention(const Keys::Unread& entry) {
  return entry.key == "attn_type_list" && entry.value->is_array() &&
         std::ranges::all_of(*entry.value, [](const Json& type) { return type == 1; });
}

void refuse_keys(Import& in) {
  for (const Keys::Unread& entry : in.keys.entries()) {
    if (entry.outside || asks_for_nothing(*entry.value)) continue;
    if (std::ranges::find(kInnocent, entry.key) != std::end(kInnocent)) continue;
    if (lists_full_attention(entry)) continue;
    for (const Sign& sign : kKeys)
      if (entry.key.starts_with(sign.word)) refuse(in, entry.path, *entry.value, sign.what);
  }
}

// Towers of images, encoders and decoders together: a causal language model is what Piper counts.
void refuse_other_models(Import& in) {
  if (in.keys.boolean({"is_encoder_decoder"}).value_or(false))
    in.keys.problem({"is_encoder_decoder"}, "is true; allowed: false (a decoder alone)");
  for (const char* key : {"patch_size", "image_size", "num_channels"})
    if (in.keys.is_given({key}))
      in.keys.problem({key}, "belongs to a model of images; allowed: a causal language model");
  if (!in.keys.problems()->empty()) in.keys.problems()->finish();
}

}  // namespace

void refuse_foreign_architecture(Import& in) {
  const std::string_view what = told_by_name(in.model.family);
  if (!what.empty()) refuse(in, in.keys.path({"model_type"}), in.model.family, what);
  refuse_other_models(in);
  refuse_keys(in);
  refuse_layer_types(in);
}

}  // namespace piper::model
