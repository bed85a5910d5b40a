#include <fmt/format.h>
#include <piper/model/describe.h>

#include <algorithm>

namespace piper::model {

namespace {

std::string values_of(const Attention& a) {
  return a.value_dim() == a.head_dim ? "" : fmt::format(" (values {})", a.value_dim());
}

std::string keys_of(const Attention& a) {
  switch (a.key_value) {
    case KeyValue::kProjected:
      return fmt::format("{} kv", a.num_kv_heads);
    case KeyValue::kValuesAreKeys:
      return fmt::format("{} kv, values are keys", a.num_kv_heads);
    case KeyValue::kOfEarlierLayer:
      return fmt::format("{} kv of an earlier layer", a.num_kv_heads);
  }
  return "";
}

}  // namespace

std::string describe(const Attention& a) {
  const std::string indexed = !a.indexer.is_used() ? ""
                              : a.indexer.shared   ? ", indexed by an earlier layer"
                                                   : ", indexed";
  const std::string window =
      a.window > 0 ? fmt::format(", {} {}", a.chunked ? "chunk" : "window", a.window) : "";
  switch (a.kind) {
    case AttentionKind::kGrouped:
      return fmt::format("{} heads of {}{}, {}{}{}", a.num_heads, a.head_dim, values_of(a),
                         keys_of(a), indexed, window);
    case AttentionKind::kLatent:
      return fmt::format("{} heads, latent rank {}{}{}", a.num_heads, a.latent.key_value_rank,
                         indexed, window);
    case AttentionKind::kGatedDelta:
      return fmt::format("gated delta, {} heads of {}", a.delta.value_heads,
                         a.delta.value_head_dim);
  }
  return "";
}

std::string describe(const FeedForward& f) {
  if (!f.is_moe()) return fmt::format("dense {}", f.ffn);
  return fmt::format(
      "{} experts of {}, top {}{}{}", f.num_experts, f.ffn, f.top_k,
      f.shared_ffn > 0 ? fmt::format(", shared {}", f.shared_ffn) : "",
      f.parallel_dense_ffn > 0 ? fmt::format(", dense {} beside", f.parallel_dense_ffn) : "");
}

std::string LayerKind::range() const {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end == i ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[end]);
    i = end + 1;
  }
  return text;
}

std::vector<LayerKind> layer_kinds(const Model& model) {
  std::vector<LayerKind> kinds;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind& kind) {
      return model.layers[kind.layers.front()] == model.layers[i];
    });
    if (same == kinds.end())
      kinds.push_back({{i}});
    else
      same->layers.push_back(i);
  }
  return kinds;
}

}  // namespace piper::model
