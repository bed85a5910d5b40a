// What each layer sees: everything before it, a sliding span, a chunk; with or without positions.
#include <fmt/format.h>
#include <piper/model/import_parts.h>

#include <set>

namespace piper::model {
namespace {

// 0 = rotary everywhere. Llama 4 lists 1 for a layer *with* positions; SmolLM3 too.
void import_layers_without_positions(Import& in) {
  const int64_t num_layers = in.model.num_layers();
  const std::vector<int64_t> listed = in.keys.has({"no_rope_layers"})
                                          ? in.keys.integers({"no_rope_layers"}, 0, 1)
                                          : std::vector<int64_t>{};
  auto interval = in.keys.integer({"no_rope_layer_interval"}, 1, kMaxLayers);
  if (!listed.empty()) {
    if (static_cast<int64_t>(listed.size()) < num_layers && in.keys.layers_known())
      in.keys.problem({"no_rope_layers"},
                      fmt::format("has {} entries; allowed: one for each of the {} layers",
                                  listed.size(), num_layers));
    for (size_t i = 0; i < in.model.layers.size() && i < listed.size(); ++i)
      in.model.layers[i].attention.rotary = listed[i] == 1;
    return;
  }
  if (!interval && in.family.chunked_without_nope) interval = 4;
  if (!interval) return;
  for (size_t i = 0; i < in.model.layers.size(); ++i)
    in.model.layers[i].attention.rotary = static_cast<int64_t>(i + 1) % *interval != 0;
}

struct Spans {
  int64_t sliding = 0, chunk = 0;
};

void set_by_type(Import& in, const std::vector<std::string>& types, const Spans& spans) {
  std::set<std::string> refused;  // named once, by the first layer of the type
  for (size_t i = 0; i < types.size(); ++i) {
    Attention& a = in.model.layers[i].attention;
    const std::string& type = types[i];
    if (type == "full_attention" || type == "global_attention" || type == "attention") continue;
    if (type == "indexed_attention" || type == "deepseek_sparse_attention" || type == kBlockSparse)
      continue;  // the indexer's keys say the rest
    if (type == "linear_attention" && a.kind == AttentionKind::kGatedDelta) continue;
    if (type == "sliding_attention" || type == "local_attention") {
      a.window = spans.sliding;
    } else if (type == "chunked_attention") {
      a.window = spans.chunk;
      a.chunked = spans.chunk > 0;
    } else if (refused.insert(type).second) {
      in.keys.problems()->add(fmt::format("{}[{}]", in.keys.path({"layer_types"}), i),
                              fmt::format("is '{}'; allowed: full_attention, sliding_attention, "
                                          "chunked_attention, and linear_attention "
                                          "where its keys (linear_num_value_heads, ...) are given",
                                          type));
    }
  }
}

// Without layer_types: every n-th layer is full (a pattern), or layers from max_window_layers on
// slide, or all do.
void set_by_rule(Import& in, const Spans& spans) {
  Keys& keys = in.keys;
  const auto pattern =
      keys.integer({"sliding_window_pattern", "global_attn_every_n_layers"}, 1, kMaxLayers);
  const auto use = keys.boolean({"use_sliding_window"});
  const auto first = keys.integer({"max_window_layers"}, 0, kMaxLayers);
  for (size_t i = 0; i < in.model.layers.size(); ++i) {
    Attention& a = in.model.layers[i].attention;
    const auto layer = static_cast<int64_t>(i);
    if (in.family.chunked_without_nope) {
      a.window = a.rotary ? spans.chunk : 0;
      a.chunked = a.window > 0;
      continue;
    }
    bool slides = use.value_or(true);
    if (pattern) slides = slides && (layer + 1) % *pattern != 0;
    if (!pattern && in.family.windows_alternate) slides = slides && layer % 2 == 0;
    if (!pattern && in.family.window_period > 0)
      slides = slides && (layer + 1) % in.family.window_period != 0 &&
               !(in.family.first_is_full && layer == 0) &&
               !(in.family.last_is_full && layer + 1 == in.model.num_layers());
    if (use.value_or(false) && first) slides = slides && layer >= *first;
    if (slides && a.kind != AttentionKind::kGatedDelta) a.window = spans.sliding;
  }
}

}  // namespace

void import_windows(Import& in) {
  in.keys.integers_by_layer({"attn_type_list"}, 1, 1, in.model.num_layers());
  import_layers_without_positions(in);
  Spans spans;
  spans.sliding =
      in.keys.integer({"sliding_window", "sliding_window_size"}, 0, kMaxPositions).value_or(0);
  spans.chunk = in.keys.integer({"attention_chunk_size"}, 1, kMaxPositions).value_or(0);
  const std::vector<std::string> types =
      in.keys.texts_by_layer({"layer_types"}, in.model.num_layers());
  const std::vector<int64_t> slides =
      in.keys.integers_by_layer({"hybrid_layer_pattern"}, 0, 1, in.model.num_layers());
  if (types.empty() && !slides.empty()) {
    for (size_t i = 0; i < slides.size(); ++i)
      in.model.layers[i].attention.window = slides[i] == 1 ? spans.sliding : 0;
  } else if (types.empty()) {
    set_by_rule(in, spans);
  } else {
    set_by_type(in, types, spans);
    if (in.family.last_is_full) in.model.layers.back().attention.window = 0;
    for (const char* implied :
         {"sliding_window_pattern", "global_attn_every_n_layers", "use_sliding_window",
          "_sliding_window_pattern", "max_window_layers", "full_attention_interval"})
      in.keys.ignore(implied);
  }
  // A norm without a weight belongs to the rotary layers (Llama 4).
  for (Layer& layer : in.model.layers)
    if (!layer.attention.rotary && layer.attention.qk_norm == QkNorm::kUnweighted)
      layer.attention.qk_norm = QkNorm::kNone;
}

}  // namespace piper::model
