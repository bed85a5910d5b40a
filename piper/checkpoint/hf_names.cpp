#include <fmt/format.h>
#include <piper/checkpoint/hf_names.h>

#include <array>

namespace piper::checkpoint {
namespace {

struct ExpertMatrix {
  const char* common;   // Qwen3-MoE, OLMoE
  const char* mixtral;  // Mixtral
  const char* fused;
  int64_t part, parts;
};
// Repeated in every module of multi-token prediction.
constexpr const char* kModuleEmbedding = "embed_tokens.weight";
constexpr const char* kModuleHead = "shared_head.head.weight";

constexpr std::array<ExpertMatrix, 3> kExpertMatrices = {{{"gate_proj", "w1", "gate_up_proj", 0, 2},
                                                          {"up_proj", "w3", "gate_up_proj", 1, 2},
                                                          {"down_proj", "w2", "down_proj", 0, 1}}};

class NameWriter {
 public:
  explicit NameWriter(const model::Model& model) : model_(model) {}

  std::vector<TensorShape> write() {
    add("model.embed_tokens.weight", {model_.vocabulary, model_.hidden});
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      add_attention(layer + "self_attn.", model_.layers[i].attention);
      add_feed_forward(layer, model_.layers[i].feed_forward);
      add(layer + "input_layernorm.weight", {model_.hidden});
      add(layer + "post_attention_layernorm.weight", {model_.hidden});
      if (model_.mtp_depth_of(static_cast<int64_t>(i)) > 0) add_module(layer);
    }
    add("model.norm.weight", {model_.hidden});
    if (!model_.tied_embeddings) add("lm_head.weight", {model_.vocabulary, model_.hidden});
    return std::move(tensors_);
  }

 private:
  void add(std::string name, std::vector<int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }

  void add_module(const std::string& layer) {
    add(layer + "eh_proj.weight", {model_.hidden, 2 * model_.hidden});
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
      add(layer + norm + ".weight", {model_.hidden});
  }

  void add_latent(const std::string& prefix, const model::Attention& a) {
    const model::LatentAttention& l = a.latent;
    const int64_t query = a.num_heads * (l.nope_head_dim + l.rope_head_dim);
    if (l.query_rank > 0) {
      add(prefix + "q_a_proj.weight", {l.query_rank, model_.hidden});
      add(prefix + "q_a_layernorm.weight", {l.query_rank});
      add(prefix + "q_b_proj.weight", {query, l.query_rank});
    } else {
      add(prefix + "q_proj.weight", {query, model_.hidden});
    }
    add(prefix + "kv_a_proj_with_mqa.weight", {l.key_value_rank + l.rope_head_dim, model_.hidden});
    add(prefix + "kv_a_layernorm.weight", {l.key_value_rank});
    add(prefix + "kv_b_proj.weight",
        {a.num_heads * (l.nope_head_dim + l.value_head_dim), l.key_value_rank});
    add(prefix + "o_proj.weight", {model_.hidden, a.num_heads * l.value_head_dim});
  }

  void add_attention(const std::string& prefix, const model::Attention& a) {
    if (a.kind == model::AttentionKind::kLatent) return add_latent(prefix, a);
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

  void add_shared(const std::string& prefix, const model::FeedForward& f) {
    const std::string shared = prefix + (f.shared_gate ? "shared_expert." : "shared_experts.");
    add(shared + "gate_proj.weight", {f.shared_ffn, model_.hidden});
    add(shared + "up_proj.weight", {f.shared_ffn, model_.hidden});
    add(shared + "down_proj.weight", {model_.hidden, f.shared_ffn});
    if (f.shared_gate) add(prefix + "shared_expert_gate.weight", {1, model_.hidden});
  }

  void add_feed_forward(const std::string& layer, const model::FeedForward& f) {
    const bool mixtral = model_.family == "mixtral";
    const std::string prefix = layer + (mixtral && f.is_moe() ? "block_sparse_moe." : "mlp.");
    if (f.is_moe()) add(prefix + "gate.weight", {f.num_experts, model_.hidden});
    if (f.is_moe() && f.selection_bias)
      add(prefix + "gate.e_score_correction_bias", {f.num_experts});
    if (f.is_moe() && f.shared_ffn > 0) add_shared(prefix, f);
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

std::vector<std::string> split(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '.')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

bool is_index(const std::string& word) {
  return !word.empty() && word.size() < 10 &&
         word.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::vector<TensorShape> expected_tensors(const model::Model& model) {
  return NameWriter(model).write();
}

bool is_left_out(const std::string& name, const model::Model& model) {
  const std::vector<std::string> words = split(name);
  if (words.size() < 4 || words[0] != "model" || words[1] != "layers" || !is_index(words[2]))
    return false;
  const int64_t layer = std::stoll(words[2]), trained = std::ssize(model.layers);
  if (layer >= trained) return layer < model.num_layers() + model.num_next_token_layers;
  if (model.mtp_depth_of(layer) == 0) return false;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  return name == prefix + kModuleEmbedding || name == prefix + kModuleHead;
}

std::vector<TableRepeat> module_tables(const model::Model& model) {
  std::vector<TableRepeat> repeats;
  const char* head = model.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  for (int64_t layer = model.num_layers(); layer < std::ssize(model.layers); ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    repeats.push_back({prefix + kModuleEmbedding, "model.embed_tokens.weight"});
    repeats.push_back({prefix + kModuleHead, head});
  }
  return repeats;
}

std::vector<Source> sources(const std::string& name, bool tied_embeddings) {
  std::vector<Source> places = {{.name = name}};
  if (name == "lm_head.weight" && tied_embeddings)
    places.push_back({.name = "model.embed_tokens.weight"});
  // model.layers.<i>.<block>.gate.weight, model.layers.<i>.<block>.experts.<e>.<matrix>.weight
  const std::vector<std::string> words = split(name);
  const bool mixtral = words.size() > 3 && words[3] == "block_sparse_moe";
  if (words.size() < 6 || words[0] != "model" || words[1] != "layers" || words.back() != "weight" ||
      !(mixtral || words[3] == "mlp"))
    return places;
  const std::string layer = fmt::format("model.layers.{}.", words[2]);
  const std::string other_block = mixtral ? "mlp" : "block_sparse_moe";
  if (words.size() == 6 && words[4] == "gate")
    places.push_back({.name = layer + other_block + ".gate.weight"});
  if (words.size() != 8 || words[4] != "experts" || !is_index(words[5])) return places;
  for (const ExpertMatrix& matrix : kExpertMatrices) {
    if (words[6] != (mixtral ? matrix.mixtral : matrix.common)) continue;
    places.push_back({.name = fmt::format("{}{}.experts.{}.{}.weight", layer, other_block, words[5],
                                          mixtral ? matrix.common : matrix.mixtral)});
    places.push_back({.name = layer + "mlp.experts." + matrix.fused,
                      .fused = true,
                      .expert = std::stoll(words[5]),
                      .part = matrix.part,
                      .parts = matrix.parts});
  }
  return places;
}

}  // namespace piper::checkpoint
