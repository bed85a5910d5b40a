#include <fmt/format.h>
#include <piper/train/hf_names.h>

#include <array>
#include <regex>

namespace piper::train {
namespace {

struct ExpertMatrix {
  const char* common;   // Qwen3-MoE, OLMoE
  const char* mixtral;  // Mixtral
  const char* fused;
  int64_t part, parts;
};
constexpr std::array<ExpertMatrix, 3> kExpertMatrices = {{{"gate_proj", "w1", "gate_up_proj", 0, 2},
                                                          {"up_proj", "w3", "gate_up_proj", 1, 2},
                                                          {"down_proj", "w2", "down_proj", 0, 1}}};

class Writer {
 public:
  explicit Writer(const model::Model& model) : model_(model) {}

  std::vector<TensorShape> write() {
    add("model.embed_tokens.weight", {model_.vocabulary, model_.hidden});
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      add_attention(layer + "self_attn.", model_.layers[i].attention);
      add_feed_forward(layer, model_.layers[i].feed_forward);
      add(layer + "input_layernorm.weight", {model_.hidden});
      add(layer + "post_attention_layernorm.weight", {model_.hidden});
    }
    add("model.norm.weight", {model_.hidden});
    if (!model_.tied_embeddings) add("lm_head.weight", {model_.vocabulary, model_.hidden});
    return std::move(tensors_);
  }

 private:
  void add(std::string name, std::vector<int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }

  void add_attention(const std::string& prefix, const model::Attention& a) {
    const int64_t queries = a.num_heads * a.head_dim, keys = a.num_kv_heads * a.head_dim,
                  hidden = model_.hidden;
    const auto projection = [&](const char* name, int64_t rows, int64_t columns, bool bias) {
      add(prefix + name + ".weight", {rows, columns});
      if (bias) add(prefix + name + ".bias", {rows});
    };
    projection("q_proj", queries, hidden, a.query_bias);
    projection("k_proj", keys, hidden, a.key_bias);
    projection("v_proj", keys, hidden, a.value_bias);
    projection("o_proj", hidden, queries, a.output_bias);
    if (a.qk_norm == model::QkNorm::kPerHead || a.qk_norm == model::QkNorm::kFull) {
      const bool full = a.qk_norm == model::QkNorm::kFull;
      add(prefix + "q_norm.weight", {full ? queries : a.head_dim});
      add(prefix + "k_norm.weight", {full ? keys : a.head_dim});
    }
  }

  void add_feed_forward(const std::string& layer, const model::FeedForward& f) {
    const bool mixtral = model_.family == "mixtral";
    const std::string prefix = layer + (mixtral && f.is_moe() ? "block_sparse_moe." : "mlp.");
    if (f.is_moe()) add(prefix + "gate.weight", {f.num_experts, model_.hidden});
    for (int64_t expert = 0; expert < (f.is_moe() ? f.num_experts : 1); ++expert)
      for (const ExpertMatrix& matrix : kExpertMatrices) {
        const std::string inner = f.is_moe() ? fmt::format("experts.{}.", expert) : "";
        const bool down = matrix.parts == 1;
        add(prefix + inner + (mixtral && f.is_moe() ? matrix.mixtral : matrix.common) + ".weight",
            {down ? model_.hidden : f.ffn, down ? f.ffn : model_.hidden});
      }
  }

  const model::Model& model_;
  std::vector<TensorShape> tensors_;
};

}  // namespace

std::vector<TensorShape> expected_tensors(const model::Model& model) {
  return Writer(model).write();
}

std::vector<Source> sources(const std::string& name, bool tied_embeddings) {
  static const std::regex expert_name(
      R"((model\.layers\.\d{1,9}\.)(mlp|block_sparse_moe)\.experts\.(\d{1,9})\.(\w+)\.weight)");
  static const std::regex router_name(
      R"((model\.layers\.\d{1,9}\.)(mlp|block_sparse_moe)\.gate\.weight)");
  std::vector<Source> places = {{.name = name}};
  std::smatch match;
  if (name == "lm_head.weight" && tied_embeddings)
    places.push_back({.name = "model.embed_tokens.weight"});
  if (std::regex_match(name, match, router_name)) {
    const bool mixtral = match[2] == "block_sparse_moe";
    places.push_back(
        {.name = match[1].str() + (mixtral ? "mlp" : "block_sparse_moe") + ".gate.weight"});
  }
  if (!std::regex_match(name, match, expert_name)) return places;
  const std::string layer = match[1], matrix_name = match[4];
  const bool mixtral = match[2] == "block_sparse_moe";
  for (const ExpertMatrix& matrix : kExpertMatrices) {
    if (matrix_name != (mixtral ? matrix.mixtral : matrix.common)) continue;
    places.push_back({.name = fmt::format("{}{}.experts.{}.{}.weight", layer,
                                          mixtral ? "mlp" : "block_sparse_moe", match[3].str(),
                                          mixtral ? matrix.common : matrix.mixtral)});
    places.push_back({.name = layer + "mlp.experts." + matrix.fused,
                      .fused = true,
                      .expert = std::stoll(match[3]),
                      .part = matrix.part,
                      .parts = matrix.parts});
  }
  return places;
}

}  // namespace piper::train
