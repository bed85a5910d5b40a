// Encoders of images and sound beside the language model: counted where the config says all of
// their sizes, else named.
#include <piper/base/json.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace piper::model {
namespace {

// The sizes of an encoder. One that is missing or absurd leaves the encoder uncounted: it is no
// problem of the model.
class TowerSizes {
 public:
  TowerSizes(const Json& config, const Json* outside) : config_(config), outside_(outside) {}

  int64_t operator()(const char* key) { return read(&config_, key, 0); }
  int64_t or_else(const char* key, int64_t fallback) { return read(&config_, key, fallback); }
  int64_t outside(const char* key) { return read(outside_, key, 0); }
  bool is_on(const char* key) const { return is_true(&config_, key); }
  bool is_on_outside(const char* key) const { return is_true(outside_, key); }
  int64_t length(const char* key) const {
    return config_.contains(key) ? static_cast<int64_t>(config_.at(key).size()) : 0;
  }
  void give_up() { complete_ = false; }
  std::optional<int64_t> counted(int64_t total) const {
    return complete_ ? std::optional(total) : std::nullopt;
  }

 private:
  // A bound under which no product of four sizes leaves 64 bits.
  static constexpr int64_t kMost = 1 << 15;

  int64_t read(const Json* from, const char* key, int64_t fallback) {
    if (from == nullptr || !from->contains(key) || from->at(key).is_null()) {
      if (fallback == 0) complete_ = false;
      return std::max<int64_t>(fallback, 1);
    }
    const Json& value = from->at(key);
    if (value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMost)
      return value.get<int64_t>();
    complete_ = false;
    return 1;
  }
  static bool is_true(const Json* from, const char* key) {
    return from != nullptr && from->contains(key) && from->at(key).is_boolean() &&
           from->at(key).get<bool>();
  }

  const Json& config_;
  const Json* outside_;
  bool complete_ = true;
};

int64_t linear(int64_t from, int64_t to) { return from * to + to; }  // with its bias

// Counts a plain encoder block: two LayerNorms, four projections and two matrices, all with biases.
int64_t plain_block(int64_t h, int64_t ffn) {
  return 4 * h + 4 * linear(h, h) + linear(h, ffn) + linear(ffn, h);
}

// Qwen3-VL, Qwen3.5: mergers of so many patches, one after the last block and one after each deep
// one.
std::optional<int64_t> qwen3(TowerSizes& s, int64_t, bool deep) {
  const int64_t h = s("hidden_size"), merge = s("spatial_merge_size"), wide = h * merge * merge,
                patch = s("patch_size"), out = s("out_hidden_size");
  const int64_t pixels =
      s.or_else("in_channels", 3) * s.or_else("temporal_patch_size", 2) * patch * patch;
  const int64_t merger = linear(wide, wide) + linear(wide, out);
  int64_t total = linear(pixels, h) + s("num_position_embeddings") * h +
                  s("depth") * plain_block(h, s("intermediate_size")) + 2 * h + merger;
  if (deep) total += s.length("deepstack_visual_indexes") * (2 * wide + merger);
  return s.counted(total);
}

// Qwen2.5-VL: RMSNorms and a gated feed-forward with biases.
std::optional<int64_t> qwen2_5(TowerSizes& s, int64_t) {
  const int64_t h = s("hidden_size"), ffn = s("intermediate_size"), merge = s("spatial_merge_size"),
                wide = h * merge * merge, patch = s("patch_size");
  const int64_t pixels =
      s.or_else("in_channels", 3) * s.or_else("temporal_patch_size", 2) * patch * patch;
  const int64_t block = 2 * h + 4 * linear(h, h) + 2 * linear(h, ffn) + linear(ffn, h);
  return s.counted(pixels * h + s("depth") * block + h + linear(wide, wide) +
                   linear(wide, s("out_hidden_size")));
}

std::optional<int64_t> qwen2(TowerSizes& s, int64_t) {
  const int64_t h = s("embed_dim"), merge = s("spatial_merge_size"), wide = h * merge * merge,
                patch = s("patch_size");
  const int64_t pixels =
      s.or_else("in_channels", 3) * s.or_else("temporal_patch_size", 2) * patch * patch;
  return s.counted(pixels * h + s("depth") * plain_block(h, s("mlp_ratio") * h) + 2 * h +
                   linear(wide, wide) + linear(wide, s("hidden_size")));
}

// Gemma 3: SigLIP, one norm and one projection.
std::optional<int64_t> siglip(TowerSizes& s, int64_t text) {
  const int64_t h = s("hidden_size"), ffn = s("intermediate_size"), patch = s("patch_size"),
                side = s("image_size") / patch;
  const int64_t head = h + 4 * linear(h, h) + 2 * h + linear(h, ffn) + linear(ffn, h);
  return s.counted(linear(s.or_else("num_channels", 3) * patch * patch, h) + side * side * h +
                   s("num_hidden_layers") * plain_block(h, ffn) + 2 * h +
                   (s.is_on("vision_use_head") ? head : 0) + h * text + h);
}

std::optional<int64_t> gemma4(TowerSizes& s, int64_t text) {
  const int64_t h = s("hidden_size"), ffn = s("intermediate_size"), patch = s("patch_size"),
                dim = s("head_dim");
  const int64_t heads = s("num_attention_heads"), kv = s("num_key_value_heads");
  const int64_t block = 2 * h * dim * (heads + kv) + 2 * dim + 3 * h * ffn + 4 * h;
  return s.counted(2 * s("position_embedding_size") * h + 3 * patch * patch * h +
                   s("num_hidden_layers") * block + h * text);
}

std::optional<int64_t> llama4(TowerSizes& s, int64_t text) {
  if (s.is_on("multi_modal_projector_bias")) s.give_up();
  const int64_t h = s("hidden_size"), ffn = s("intermediate_size"), patch = s("patch_size"),
                side = s("image_size") / patch, in = s("projector_input_dim");
  return s.counted(h + (side * side + 1) * h + s.or_else("num_channels", 3) * patch * patch * h +
                   4 * h + s("num_hidden_layers") * plain_block(h, ffn) + in * ffn +
                   in * s("projector_output_dim") + s("vision_output_dim") * text);
}

// Mistral 3: Pixtral, and a merger of patches.
std::optional<int64_t> pixtral(TowerSizes& s, int64_t text) {
  if (s.is_on_outside("multimodal_projector_bias")) s.give_up();
  const int64_t h = s("hidden_size"), ffn = s("intermediate_size"), patch = s("patch_size"),
                merge = s.outside("spatial_merge_size");
  return s.counted(s.or_else("num_channels", 3) * patch * patch * h + h +
                   s("num_hidden_layers") * (4 * h * h + 3 * h * ffn + 2 * h) + h +
                   h * h * merge * merge + h * text + text * text);
}

std::optional<int64_t> count_vision(std::string_view family, TowerSizes& s, int64_t text) {
  if (family == "qwen3_vl" || family == "qwen3_vl_moe") return qwen3(s, text, true);
  if (family == "qwen3_5" || family == "qwen3_5_moe") return qwen3(s, text, false);
  if (family == "qwen2_5_vl") return qwen2_5(s, text);
  if (family == "qwen2_vl") return qwen2(s, text);
  if (family == "gemma3") return siglip(s, text);
  if (family == "gemma4") return gemma4(s, text);
  if (family == "llama4") return llama4(s, text);
  if (family == "mistral3") return pixtral(s, text);
  return std::nullopt;
}

bool describes_tower(const std::string& key) {
  static constexpr std::string_view kWords[] = {"vision", "visual", "audio", "image", "speech",
                                                "video",  "sound",  "vit_",  "talker"};
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return key.find(word) != std::string::npos; });
}

}  // namespace

std::vector<Tower> import_towers(Import& in) {
  const Json* wrapper = in.keys.wrapper();
  const std::string family =
      wrapper != nullptr && wrapper->contains("model_type") && wrapper->at("model_type").is_string()
          ? wrapper->at("model_type").get<std::string>()
          : in.model.family;
  std::vector<Tower> towers;
  for (const Keys::Unread& entry : in.keys.unread()) {
    if (!entry.value->is_object() || !describes_tower(entry.key)) continue;
    TowerSizes sizes(*entry.value, wrapper);
    Tower tower{.name = entry.path, .parameters = std::nullopt};
    if (entry.key == "vision_config")
      tower.parameters = count_vision(family, sizes, in.model.hidden);
    towers.push_back(std::move(tower));
    in.keys.ignore(entry.key.c_str());
  }
  return towers;
}

}  // namespace piper::model
