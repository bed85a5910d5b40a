// What differs from layer to layer in attention: heads and their sizes, sinks, whose keys and
// values it reads, indexers.
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/model/import_parts.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace piper::model {
namespace {

// Heads and sizes of one kind of layer; what is not said is as in the other layers.
struct HeadSizes {
  std::optional<int64_t> heads, kv_heads, head_dim, value_dim;

  void apply(Attention& a) const {
    a.num_heads = heads.value_or(a.num_heads);
    a.num_kv_heads = kv_heads.value_or(a.num_kv_heads);
    a.head_dim = head_dim.value_or(a.head_dim);
    a.value_head_dim = value_dim.value_or(a.value_head_dim);
  }
};

bool is_grouped(const Layer& layer) { return layer.attention.kind == AttentionKind::kGrouped; }

// The older spelling of Step-3.5: an object with the sizes of the sliding layers.
HeadSizes other_setting(Import& in) {
  const Json* object = in.keys.object({"attention_other_setting"});
  if (object == nullptr) return {};
  ObjectReader reader(*object, in.keys.path({"attention_other_setting"}), in.keys.problems());
  const auto number = [&](const char* key, int64_t max) -> std::optional<int64_t> {
    if (!reader.has(key)) return std::nullopt;
    return reader.integer(key, 1, max);
  };
  return {.heads = number("num_attention_heads", kMaxHeads),
          .kv_heads = number("num_attention_groups", kMaxHeads),
          .head_dim = number("head_dim", kMaxHeadDim),
          .value_dim = {}};
}

HeadSizes sliding_sizes(Import& in) {
  Keys& keys = in.keys;
  HeadSizes sizes = other_setting(in);
  const auto set = [](std::optional<int64_t>& size, std::optional<int64_t> given) {
    if (given) size = given;
  };
  set(sizes.heads,
      keys.integer({"swa_num_attention_heads", "num_sliding_attention_heads"}, 1, kMaxHeads));
  set(sizes.kv_heads, keys.integer({"swa_num_key_value_heads"}, 1, kMaxHeads));
  set(sizes.head_dim, keys.integer({"swa_head_dim"}, 1, kMaxHeadDim));
  set(sizes.value_dim, keys.integer({"swa_v_head_dim"}, 1, kMaxHeadDim));
  if (!sizes.kv_heads && in.family.sliding_kv_heads > 1)
    sizes.kv_heads = in.family.sliding_kv_heads * in.model.layers.front().attention.num_kv_heads;
  return sizes;
}

// Returns the sizes of layers with full attention. They have their own number of key heads only
// with one projection for keys and values (Gemma 4).
HeadSizes full_sizes(Import& in, bool values_are_keys) {
  HeadSizes sizes;
  sizes.head_dim = in.keys.integer({"global_head_dim"}, 1, kMaxHeadDim);
  const auto kv_heads = in.keys.integer({"num_global_key_value_heads"}, 1, kMaxHeads);
  if (values_are_keys || !in.keys.has({"attention_k_eq_v"})) sizes.kv_heads = kv_heads;
  return sizes;
}

void apply_by_kind(Import& in) {
  const bool values_are_keys = in.keys.boolean({"attention_k_eq_v"}).value_or(false);
  const HeadSizes sliding = sliding_sizes(in), full = full_sizes(in, values_are_keys);
  const auto sinks = in.keys.boolean({"add_swa_attention_sink_bias"});
  const auto full_sinks = in.keys.boolean({"add_full_attention_sink_bias"});
  for (Layer& layer : in.model.layers) {
    if (!is_grouped(layer)) continue;
    Attention& a = layer.attention;
    const bool slides = a.window > 0;
    (slides ? sliding : full).apply(a);
    if (in.family.sinks_slide) a.sinks = slides;
    if (const auto asked = slides ? sinks : full_sinks) a.sinks = *asked;
    if (values_are_keys && !slides) a.key_value = KeyValue::kValuesAreKeys;
  }
}

// One number of heads a layer (Laguna).
void apply_lists(Import& in) {
  const auto set = [&](Spellings names, int64_t Attention::*member) {
    const std::vector<int64_t> values =
        in.keys.integers_by_layer(names, 1, kMaxHeads, in.model.num_layers());
    for (size_t i = 0; i < values.size(); ++i) in.model.layers[i].attention.*member = values[i];
  };
  set({"num_attention_heads_per_layer"}, &Attention::num_heads);
  set({"num_key_value_heads_per_layer"}, &Attention::num_kv_heads);
}

// The last layers read keys and values of the last ones before them (Gemma 4).
void share_keys(Import& in) {
  const int64_t num_layers = in.model.num_layers();
  const int64_t shared =
      in.keys.integer({"num_kv_shared_layers"}, 0, std::max<int64_t>(num_layers - 1, 0))
          .value_or(0);
  for (int64_t i = num_layers - shared; i < num_layers; ++i)
    in.model.layers[static_cast<size_t>(i)].attention.key_value = KeyValue::kOfEarlierLayer;
}

// What transformers 5 writes: {"5": {"head_dim": 512, "num_key_value_heads": 2}}.
void apply_by_number(Import& in) {
  const Json* object = in.keys.object({"per_layer_config"});
  if (object == nullptr) return;
  const std::string path = in.keys.path({"per_layer_config"});
  for (const auto& [name, value] : object->items()) {
    size_t layer = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (error != std::errc() || end != name.data() + name.size() ||
        layer >= in.model.layers.size()) {
      if (in.keys.layers_known())
        in.keys.problems()->add(path + "." + name,
                                fmt::format("names no layer; allowed: an integer from 0 to {}",
                                            in.model.layers.size() - 1));
      continue;
    }
    ObjectReader reader(value, path + "." + name, in.keys.problems());
    const auto number = [&](const char* key, int64_t max) -> std::optional<int64_t> {
      if (!reader.has(key)) return std::nullopt;
      return reader.integer(key, 1, max);
    };
    HeadSizes{.heads = number("num_attention_heads", kMaxHeads),
              .kv_heads = number("num_key_value_heads", kMaxHeads),
              .head_dim = number("head_dim", kMaxHeadDim),
              .value_dim = number("v_head_dim", kMaxHeadDim)}
        .apply(in.model.layers[layer].attention);
    reader.refuse_unknown();
  }
}

// One problem for the first layer whose heads do not divide; a wrong total has a problem of its
// own.
void check_heads(Import& in) {
  if (!in.keys.problems()->empty()) return;
  for (size_t i = 0; i < in.model.layers.size(); ++i) {
    const Attention& a = in.model.layers[i].attention;
    if (a.kind != AttentionKind::kGrouped || a.num_heads % a.num_kv_heads == 0) continue;
    in.keys.problems()->add(
        in.keys.path(a.window > 0 ? Spellings{"swa_num_key_value_heads"}
                                  : Spellings{"num_global_key_value_heads"}),
        fmt::format("gives layer {} {} key heads; allowed: a divisor of its {} attention heads", i,
                    a.num_kv_heads, a.num_heads));
    return;
  }
}

// --- indexers ---

// MiniMax-M3 keeps them in an object, by blocks of keys.
std::vector<int64_t> import_block_indexer(Import& in, Indexer& indexer) {
  const Json* object = in.keys.object({"sparse_attention_config"});
  if (object == nullptr) return {};
  ObjectReader reader(*object, in.keys.path({"sparse_attention_config"}), in.keys.problems());
  if (!reader.boolean("use_sparse_attention", true)) return {};
  indexer.heads = reader.integer("sparse_num_index_heads", 1, kMaxHeads);
  indexer.head_dim = reader.integer("sparse_index_dim", 1, kMaxHeadDim);
  indexer.top_k = reader.integer("sparse_topk_blocks", 1, kMaxHeads) *
                  reader.integer("sparse_block_size", 1, kMaxHidden);
  if (!reader.has("sparse_attention_freq")) return std::vector<int64_t>(in.model.layers.size(), 1);
  std::vector<int64_t> layers = reader.integers("sparse_attention_freq", 0, 1);
  if (layers.size() != in.model.layers.size() && in.keys.layers_known())
    reader.problem("sparse_attention_freq",
                   fmt::format("has {} entries; allowed: one for each of the {} layers",
                               layers.size(), in.model.layers.size()));
  layers.resize(in.model.layers.size());
  return layers;
}

Indexer import_indexer(Import& in) {
  Keys& keys = in.keys;
  Indexer indexer;
  indexer.heads = keys.integer({"index_n_heads"}, 0, kMaxHeads).value_or(0);
  if (indexer.heads == 0) return indexer;
  indexer.head_dim = keys.required_integer({"index_head_dim"}, 1, kMaxHeadDim);
  if (const auto blocks = keys.integer({"index_topk_blocks"}, 1, kMaxHeads))
    indexer.top_k = *blocks * keys.integer({"index_block_size"}, 1, kMaxHidden).value_or(128);
  else
    indexer.top_k = keys.required_integer({"index_topk"}, 1, kMaxPositions);
  return indexer;
}

// "full" has an indexer, "shared" takes the choice of the layer before it: a list, letters, or a
// schedule (GLM-5.2).
std::vector<bool> shared_indexers(Import& in) {
  static constexpr Spellings kTypes = {"indexer_types"}, kPattern = {"index_topk_pattern"};
  std::vector<bool> shared(in.model.layers.size(), false);
  const std::vector<std::string> types = in.keys.texts_by_layer(kTypes, in.model.num_layers());
  const int64_t period = in.keys.integer({"index_topk_freq"}, 0, kMaxLayers).value_or(1);
  const int64_t offset = in.keys.integer({"index_skip_topk_offset"}, 0, kMaxLayers).value_or(2);
  const std::string pattern = in.keys.text(kPattern).value_or("");
  for (size_t i = 0; i < shared.size(); ++i) {
    if (!types.empty()) {
      shared[i] = types[i] == "shared";
      if (types[i] != "full" && types[i] != "shared")
        in.keys.problems()->add(fmt::format("{}[{}]", in.keys.path(kTypes), i),
                                fmt::format("is '{}'; allowed: full, shared", types[i]));
    } else if (!pattern.empty()) {
      shared[i] = i < pattern.size() && pattern[i] == 'S';
    } else {
      const int64_t past = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0);
      shared[i] = past % std::max<int64_t>(period, 1) != 0;
    }
  }
  if (!shared.empty() && shared.front())
    in.keys.problem(types.empty() ? kPattern : kTypes,
                    "begins with a shared indexer; allowed: full in the first layer");
  return shared;
}

void import_indexers(Import& in) {
  Indexer indexer = import_indexer(in);
  const std::vector<int64_t> blocks = import_block_indexer(in, indexer);
  if (!indexer.is_used()) return;
  const std::vector<bool> shared = shared_indexers(in);
  const std::vector<std::string> types =
      in.keys.texts_by_layer({"layer_types"}, in.model.num_layers());
  for (size_t i = 0; i < in.model.layers.size(); ++i) {
    Attention& a = in.model.layers[i].attention;
    if (a.kind == AttentionKind::kGatedDelta) continue;
    if (!blocks.empty() && blocks[i] == 0) continue;
    // Grouped attention is sparse where its layer's type says so.
    if (is_grouped(in.model.layers[i]) && blocks.empty() &&
        (types.empty() || types[i] != kBlockSparse))
      continue;
    a.indexer = indexer;
    a.indexer.shared = shared[i];
    if (a.kind == AttentionKind::kLatent && a.latent.query_rank == 0) {
      in.keys.problem({"index_n_heads"}, "needs q_lora_rank, whose output the indexer reads");
      return;
    }
  }
}

}  // namespace

void import_layer_shapes(Import& in) {
  apply_by_kind(in);
  apply_by_number(in);
  apply_lists(in);
  share_keys(in);
  check_heads(in);
  import_indexers(in);
}

}  // namespace piper::model
