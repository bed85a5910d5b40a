#include <fmt/format.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/validate/known_models.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace piper::validate {
namespace {

// Built-in models by the beginnings of their names in tables.
struct Builtin {
  const char* part;  // of the plain name
  const char* name;
};
constexpr Builtin kBuiltins[] = {
    {"deepseekv3", "deepseek-v3"},    {"deepseekv2lite", "deepseek-v2-lite"},
    {"deepseekv2", "deepseek-v2"},    {"kimik2", "kimi-k2"},
    {"qwen3235b", "qwen3-235b-a22b"}, {"qwen330b", "qwen3-30b-a3b"},
    {"gptoss20b", "gpt-oss-20b"},     {"gptoss120b", "gpt-oss-120b"},
    {"gptoss", "gpt-oss-20b"},
};

// What tables leave out of models that are no built-ins.
struct Known {
  const char* part;
  int64_t heads, head_dim, shared_ffn, top_k;
};
constexpr Known kKnown[] = {
    {"qwen257b", 28, 128, 20480, 8},  // Qwen2-57B-A14B: config.json of its makers
    {"llama38x70b", 64, 128, 0, 2},   // upcycled Llama 3 70B
    {"mixtral8x22b", 48, 128, 0, 0},
};

bool looks_like_gpt(const std::string& name) {
  return holds(name, "gpt") && !holds(name, "gptoss")
             ? true
             : holds(name, "turing") || holds(name, "megatron") || name.starts_with("175b");
}

class RowModelMaker {
 public:
  explicit RowModelMaker(const MeasuredRow& row) : row_(row), name_(plain_name(row.model)) {}

  RowModel make() {
    for (const Builtin& b : kBuiltins)
      if (holds(name_, b.part)) return from_builtin(b.name);
    return from_shapes();
  }

 private:
  void assume(std::string what) { r_.assumed.push_back(std::move(what)); }
  void missing(const char* field) {
    if (!r_.not_priced.empty()) return;
    r_.not_priced =
        fmt::format("'{}' is not stated, and no model called '{}' is known", field, row_.model);
  }

  // Leading dense layers that the row states ("dense_layers=1").
  std::optional<int64_t> dense_layers() const {
    const size_t at = row_.note.find("dense_layers=");
    if (at == std::string::npos) return std::nullopt;
    return std::atoll(row_.note.c_str() + at + 13);
  }

  RowModel from_builtin(const char* builtin) {
    model::Model m = model::load_model(builtin);
    m.name = row_.model;
    const int64_t layers = row_.layers.value_or(m.num_layers());
    std::vector<model::Layer> kept;
    const model::Layer& last = m.layers.back();
    int64_t dense = 0;
    for (const model::Layer& layer : m.layers) dense += layer.feed_forward.is_moe() ? 0 : 1;
    dense = std::min(dense_layers().value_or(dense), layers);
    for (int64_t i = 0; i < layers; ++i)
      kept.push_back(i < dense ? m.layers.front()
                     : i < std::ssize(m.layers) &&
                             m.layers[static_cast<size_t>(i)].feed_forward.is_moe()
                         ? m.layers[static_cast<size_t>(i)]
                         : last);
    m.layers = std::move(kept);
    for (model::Layer& layer : m.layers) override_shapes(layer);
    if (row_.hidden) m.hidden = *row_.hidden;
    if (row_.vocabulary) m.vocabulary = *row_.vocabulary;
    r_.model = std::move(m);
    return r_;
  }

  void override_shapes(model::Layer& layer) const {
    if (row_.heads && layer.attention.kind != model::AttentionKind::kGatedDelta)
      layer.attention.num_heads = *row_.heads;
    if (row_.kv_heads && layer.attention.kind == model::AttentionKind::kGrouped)
      layer.attention.num_kv_heads = *row_.kv_heads;
    model::FeedForward& f = layer.feed_forward;
    if (!f.is_moe()) {
      if (row_.ffn) f.ffn = *row_.ffn;
      return;
    }
    if (row_.experts) f.num_experts = *row_.experts;
    if (row_.top_k) f.top_k = *row_.top_k;
    if (row_.moe_ffn) f.ffn = *row_.moe_ffn;
    if (row_.shared_experts) f.shared_ffn = *row_.shared_experts * f.ffn;
  }

  const Known* known() const {
    for (const Known& k : kKnown)
      if (holds(name_, k.part)) return &k;
    return nullptr;
  }

  RowModel from_shapes() {
    if (!row_.layers) missing("layers");
    if (!row_.hidden) missing("hidden");
    if (!r_.not_priced.empty()) return r_;
    const Known* facts = known();
    model::Model m;
    m.name = row_.model;
    m.hidden = *row_.hidden;
    if (!row_.heads && facts == nullptr) {
      missing("heads");
      return r_;
    }
    model::Layer layer;
    layer.attention.num_heads = row_.heads ? *row_.heads : facts->heads;
    if (!row_.heads) assume(fmt::format("heads {}", layer.attention.num_heads));
    layer.attention.num_kv_heads = row_.kv_heads.value_or(layer.attention.num_heads);
    if (!row_.kv_heads) assume(fmt::format("kv_heads {}", layer.attention.num_kv_heads));
    layer.attention.head_dim = facts != nullptr && facts->head_dim > 0
                                   ? facts->head_dim
                                   : m.hidden / std::max<int64_t>(layer.attention.num_heads, 1);
    m.vocabulary = row_.vocabulary.value_or(51200);
    if (!row_.vocabulary) assume("vocab 51200");
    m.tied_embeddings = tied();
    m.layers.assign(static_cast<size_t>(*row_.layers), layer);
    r_.model = std::move(m);
    feed_forwards(facts);
    return r_;
  }

  bool tied() const {
    if (holds(row_.note, "tied embeddings True")) return true;
    if (holds(row_.note, "tied embeddings False")) return false;
    // Where the table says nothing: GPTs share the table, and so do small models of the nanotron
    // sweep.
    return looks_like_gpt(name_) ||
           (holds(row_.source, "nanotron") && row_.hidden.value_or(0) < 4096);
  }

  void feed_forwards(const Known* facts) {
    model::Model& m = r_.model;
    model::FeedForward f;
    if (row_.experts) {
      f.num_experts = *row_.experts;
      f.top_k = row_.top_k ? *row_.top_k : facts != nullptr && facts->top_k > 0 ? facts->top_k : 2;
      if (!row_.top_k) assume(fmt::format("topk {}", f.top_k));
      if (!row_.moe_ffn && !row_.ffn) return missing("moe_ffn");
      f.ffn = row_.moe_ffn ? *row_.moe_ffn : *row_.ffn;
      if (row_.shared_experts)
        f.shared_ffn = *row_.shared_experts * f.ffn;
      else if (facts != nullptr && facts->shared_ffn > 0)
        f.shared_ffn = facts->shared_ffn;
    } else {
      dense_shape(f);
    }
    for (model::Layer& layer : m.layers) layer.feed_forward = f;
  }

  // Two matrices or three, and their width: what comes closest to the stated parameters.
  void dense_shape(model::FeedForward& f) {
    model::Model& m = r_.model;
    const bool gpt = looks_like_gpt(name_);
    f.num_matrices = gpt ? 2 : 3;
    if (row_.ffn) {
      f.ffn = *row_.ffn;
      return;
    }
    f.ffn = 4 * m.hidden;
    if (const double parameters = row_.parameters.value_or(parameters_of_name()); parameters > 0) {
      const auto layers = static_cast<double>(m.layers.size());
      const double others = static_cast<double>(model::count_parameters(without_ffn(m)).total());
      const double width =
          (parameters - others) / (layers * static_cast<double>(f.num_matrices * m.hidden));
      // Widths are multiples of 1,024 in such models; printed totals are rounded.
      f.ffn = std::max<int64_t>(1024, std::llround(width / 1024) * 1024);
    }
    assume(fmt::format("ffn {}", f.ffn));
  }

  // "llama-like 3.57G": 3.57e9; 0 when the name says nothing.
  double parameters_of_name() const {
    const std::string& name = row_.model;
    for (size_t end = 1; end < name.size(); ++end) {
      if (name[end] != 'G' && name[end] != 'B') continue;
      size_t begin = end;
      while (begin > 0 && (std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0 ||
                           name[begin - 1] == '.'))
        --begin;
      if (begin < end) return std::strtod(name.c_str() + begin, nullptr) * 1e9;
    }
    return 0;
  }

  static model::Model without_ffn(model::Model m) {
    for (model::Layer& layer : m.layers) layer.feed_forward.ffn = 0;
    // Totals are stated for full attention heads even where keys were shared.
    for (model::Layer& layer : m.layers) layer.attention.num_kv_heads = layer.attention.num_heads;
    return m;
  }

  const MeasuredRow& row_;
  std::string name_;
  RowModel r_;
};

}  // namespace

std::string plain_name(const std::string& name) {
  std::string plain;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

RowModel model_of(const MeasuredRow& row) { return RowModelMaker(row).make(); }

}  // namespace piper::validate
