#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/stage_weights.h>

#include <cmath>
#include <string>
#include <vector>

namespace piper::nn {
namespace {

constexpr int32_t kEmbeddingLayer = -1;
constexpr int32_t kHeadLayer = -2;
const char kEmbeddingName[] = "model.embed_tokens.weight";

Weight* add_matrix(ParameterStore& store, int32_t layer, std::string name, int64_t rows,
                   int64_t columns, std::vector<PieceSpec> pieces = {}) {
  return store.add({.name = std::move(name),
                    .shape = {rows, columns},
                    .layer = layer,
                    .pieces = std::move(pieces)});
}

Weight* add_norm(ParameterStore& store, int32_t layer, std::string name, int64_t width) {
  return store.add({.name = std::move(name), .shape = {width}, .layer = layer, .decays = false});
}

// Hugging Face names of a feed-forward: Mixtral's differ from everyone else's.
struct FeedForwardNames {
  std::string prefix, gate, up, down;
};

FeedForwardNames names_of(const model::Model& model, int32_t layer, bool mixture) {
  if (mixture && model.family == "mixtral")
    return {fmt::format("model.layers.{}.block_sparse_moe", layer), "w1", "w3", "w2"};
  return {fmt::format("model.layers.{}.mlp", layer), "gate_proj", "up_proj", "down_proj"};
}

Weight* add_bias(ParameterStore& store, int32_t layer, std::string name, int64_t width,
                 std::vector<PieceSpec> pieces = {}) {
  return store.add({.name = std::move(name),
                    .shape = {width},
                    .layer = layer,
                    .decays = false,
                    .initial = 0,
                    .pieces = std::move(pieces)});
}

double latent_scale(const model::Model& model, const model::LatentAttention& a) {
  return rope_score_factor(model.rope) /
         std::sqrt(static_cast<double>(a.nope_head_dim + a.rope_head_dim));
}

void declare_latent(const model::Model& model, int32_t layer, LatentAttentionBlock& block,
                    ParameterStore& store) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const model::LatentAttention& a = block.shape;
  const int64_t query = block.num_heads * (a.nope_head_dim + a.rope_head_dim);
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
    return add_matrix(store, layer, prefix + name + ".weight", rows, columns);
  };
  if (a.query_rank > 0) {
    block.q_a = matrix("q_a_proj", a.query_rank, model.hidden);
    block.q_b = matrix("q_b_proj", query, a.query_rank);
  } else {
    block.q_b = matrix("q_proj", query, model.hidden);
  }
  block.kv_a = matrix("kv_a_proj_with_mqa", a.key_value_rank + a.rope_head_dim, model.hidden);
  block.kv_b =
      matrix("kv_b_proj", block.num_heads * (a.nope_head_dim + a.value_head_dim), a.key_value_rank);
  block.output = matrix("o_proj", model.hidden, block.num_heads * a.value_head_dim);
}

void declare_latent_norms(int32_t layer, LatentAttentionBlock& block, ParameterStore& store) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  if (block.shape.query_rank > 0)
    block.q_a_norm =
        add_norm(store, layer, prefix + "q_a_layernorm.weight", block.shape.query_rank);
  block.kv_a_norm =
      add_norm(store, layer, prefix + "kv_a_layernorm.weight", block.shape.key_value_rank);
}

void declare_attention_matrices(const model::Model& model, int32_t layer, AttentionBlock& block,
                                ParameterStore& store) {
  const model::Attention& a = block.shape;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const int64_t q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  block.qkv = add_matrix(store, layer, prefix + "qkv_proj.weight", q + 2 * kv, model.hidden,
                         {{.name = prefix + "q_proj.weight", .first = 0, .count = q},
                          {.name = prefix + "k_proj.weight", .first = q, .count = kv},
                          {.name = prefix + "v_proj.weight", .first = q + kv, .count = kv}});
  block.output = add_matrix(store, layer, prefix + "o_proj.weight", model.hidden, q);
}

// All three projections or none, and the output's.
void declare_attention_biases(const model::Model& model, int32_t layer, AttentionBlock& block,
                              ParameterStore& store) {
  const model::Attention& a = block.shape;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const int64_t q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  if (a.query_bias)
    block.qkv_bias = add_bias(store, layer, prefix + "qkv_proj.bias", q + 2 * kv,
                              {{.name = prefix + "q_proj.bias", .first = 0, .count = q},
                               {.name = prefix + "k_proj.bias", .first = q, .count = kv},
                               {.name = prefix + "v_proj.bias", .first = q + kv, .count = kv}});
  if (a.output_bias)
    block.output_bias = add_bias(store, layer, prefix + "o_proj.bias", model.hidden);
}

void declare_qk_norms(int32_t layer, AttentionBlock& block, ParameterStore& store) {
  const model::Attention& a = block.shape;
  if (a.qk_norm == model::QkNorm::kNone) return;
  const bool full = a.qk_norm == model::QkNorm::kFull;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  block.q_norm =
      add_norm(store, layer, prefix + "q_norm.weight", (full ? a.num_heads : 1) * a.head_dim);
  block.k_norm =
      add_norm(store, layer, prefix + "k_norm.weight", (full ? a.num_kv_heads : 1) * a.head_dim);
}

void declare_dense(const model::Model& model, int32_t layer, int64_t ffn,
                   const FeedForwardNames& names, DenseMlpBlock& block, ParameterStore& store) {
  block.gate_up =
      add_matrix(store, layer, names.prefix + ".gate_up_proj.weight", 2 * ffn, model.hidden,
                 {{.name = names.prefix + ".gate_proj.weight", .first = 0, .count = ffn},
                  {.name = names.prefix + ".up_proj.weight", .first = ffn, .count = ffn}});
  block.down = add_matrix(store, layer, names.prefix + ".down_proj.weight", model.hidden, ffn);
}

// Qwen's one shared expert has its name in the singular, and a gate.
void declare_shared(const model::Model& model, int32_t layer, const model::FeedForward& mixture,
                    DenseMlpBlock& block, ParameterStore& store) {
  FeedForwardNames names = names_of(model, layer, false);
  const std::string mlp = names.prefix;
  names.prefix += mixture.shared_gate ? ".shared_expert" : ".shared_experts";
  declare_dense(model, layer, mixture.shared_ffn, names, block, store);
  if (mixture.shared_gate)
    block.gate = add_matrix(store, layer, mlp + ".shared_expert_gate.weight", 1, model.hidden);
}

// The parts of the two stored parameters of a rank that holds these experts, in this order.
struct ExpertPieces {
  std::vector<PieceSpec> gate_up, down;
};
ExpertPieces expert_pieces(const model::Model& model, int32_t layer,
                           const std::vector<int32_t>& held) {
  const FeedForwardNames names = names_of(model, layer, true);
  const int64_t ffn = model.layers[static_cast<size_t>(layer)].feed_forward.ffn;
  ExpertPieces pieces;
  for (int64_t i = 0; i < std::ssize(held); ++i) {
    const std::string expert =
        fmt::format("{}.experts.{}.", names.prefix, held[static_cast<size_t>(i)]);
    pieces.gate_up.push_back(
        {.name = expert + names.gate + ".weight", .expert = i, .first = 0, .count = ffn});
    pieces.gate_up.push_back(
        {.name = expert + names.up + ".weight", .expert = i, .first = ffn, .count = ffn});
    pieces.down.push_back(
        {.name = expert + names.down + ".weight", .expert = i, .first = 0, .count = model.hidden});
  }
  return pieces;
}

void declare_experts(const model::Model& model, int32_t layer, const model::FeedForward& mixture,
                     const StageShare& share, LayerBlocks& blocks, ParameterStore& store) {
  const FeedForwardNames names = names_of(model, layer, true);
  const int64_t ffn = mixture.ffn;
  const balance::ExpertPlacement placement = placement_of(share, layer, mixture.num_experts);
  ExpertPieces pieces = expert_pieces(model, layer, placement.held(share.ep_index));
  const int64_t local = std::ssize(placement.held(share.ep_index));
  if (!placement.is_plain()) blocks.gate.places = placement.places();
  ExpertsBlock& block = blocks.experts;
  block.local_experts = local;
  block.gate_up = store.add({.name = names.prefix + ".experts.gate_up_proj",
                             .shape = {local, 2 * ffn, model.hidden},
                             .sharding = Sharding::kExpert,
                             .layer = layer,
                             .pieces = std::move(pieces.gate_up)});
  block.down = store.add({.name = names.prefix + ".experts.down_proj",
                          .shape = {local, model.hidden, ffn},
                          .sharding = Sharding::kExpert,
                          .layer = layer,
                          .pieces = std::move(pieces.down)});
}

void declare_layer(const model::Model& model, int32_t layer, const StageShare& share,
                   LayerBlocks& blocks, ParameterStore& store) {
  const model::Layer& shape = model.layers[static_cast<size_t>(layer)];
  const model::FeedForward& ffn = shape.feed_forward;
  const double epsilon = model.norm_epsilon;
  const bool latent = shape.attention.kind == model::AttentionKind::kLatent;
  if (latent)
    blocks.latent = {.num_heads = shape.attention.num_heads,
                     .shape = shape.attention.latent,
                     .epsilon = epsilon,
                     .scale = latent_scale(model, shape.attention.latent)};
  else
    blocks.attention = {.shape = shape.attention, .epsilon = epsilon};
  blocks.dense_mlp.epsilon = epsilon;
  blocks.gate = {.epsilon = epsilon, .top_k = ffn.top_k, .normalised = ffn.normalise_top_k};
  blocks.gate.sigmoid = ffn.score == model::Score::kSigmoid;
  blocks.gate.scaling = ffn.routed_scaling;
  blocks.gate.num_groups = ffn.num_groups;
  blocks.gate.top_groups = ffn.top_groups;
  if (latent)
    declare_latent(model, layer, blocks.latent, store);
  else
    declare_attention_matrices(model, layer, blocks.attention, store);
  if (ffn.is_moe()) {
    blocks.gate.router =
        add_matrix(store, layer, names_of(model, layer, true).prefix + ".gate.weight",
                   ffn.num_experts, model.hidden);
    declare_experts(model, layer, ffn, share, blocks, store);
    if (ffn.shared_ffn > 0) declare_shared(model, layer, ffn, blocks.dense_mlp, store);
  } else {
    declare_dense(model, layer, ffn.ffn, names_of(model, layer, false), blocks.dense_mlp, store);
  }
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  blocks.attention.norm = blocks.latent.norm =
      add_norm(store, layer, prefix + "input_layernorm.weight", model.hidden);
  blocks.gate.norm = blocks.dense_mlp.norm =
      add_norm(store, layer, prefix + "post_attention_layernorm.weight", model.hidden);
  if (latent) {
    declare_latent_norms(layer, blocks.latent, store);
  } else {
    declare_qk_norms(layer, blocks.attention, store);
    declare_attention_biases(model, layer, blocks.attention, store);
  }
  if (ffn.is_moe() && ffn.selection_bias)
    blocks.gate.bias =
        store.add({.name = names_of(model, layer, true).prefix + ".gate.e_score_correction_bias",
                   .shape = {ffn.num_experts},
                   .layer = layer,
                   .decays = false,
                   .initial = 0,
                   .is_main = true});
}

// The names of DeepSeek-V3's released weights. The module's tables are the model's.
void declare_module(const model::Model& model, int32_t layer, const StageShare& share,
                    StageBlocks& blocks, ParameterStore& store) {
  declare_layer(model, layer, share, blocks.layers[layer], store);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  MtpBlock& block = blocks.modules[layer];
  block.depth = model.mtp_depth_of(layer);
  block.epsilon = block.head.epsilon = model.norm_epsilon;
  block.embedding = blocks.embedding != nullptr ? blocks.embedding : blocks.head.table;
  block.head.table = blocks.head.table;
  block.previous_norm =
      block.depth == 1 ? blocks.head.norm : blocks.modules.at(layer - 1).head.norm;
  block.projection =
      add_matrix(store, layer, prefix + "eh_proj.weight", model.hidden, 2 * model.hidden);
  block.embedding_norm = add_norm(store, layer, prefix + "enorm.weight", model.hidden);
  block.state_norm = add_norm(store, layer, prefix + "hnorm.weight", model.hidden);
  block.head.norm = add_norm(store, layer, prefix + "shared_head.norm.weight", model.hidden);
}

}  // namespace

balance::ExpertPlacement placement_of(const StageShare& share, int32_t layer, int64_t num_experts) {
  const auto found = share.placements.find(layer);
  if (found == share.placements.end())
    return balance::ExpertPlacement::plain(num_experts, share.ep);
  const balance::ExpertPlacement& placement = found->second;
  PIPER_CHECK(placement.num_ranks() == share.ep && placement.num_experts() == num_experts &&
                  placement.is_even() && placement.has_one_copy(),
              "a placement of this layer's experts on this group, equally many on every rank");
  return placement;
}

void place_experts(const model::Model& model, int32_t layer, const StageShare& share,
                   const balance::ExpertPlacement& placement, LayerBlocks& blocks,
                   ParameterStore& store) {
  ExpertPieces pieces = expert_pieces(model, layer, placement.held(share.ep_index));
  store.rename(blocks.experts.gate_up, std::move(pieces.gate_up));
  store.rename(blocks.experts.down, std::move(pieces.down));
  blocks.gate.places = placement.is_plain() ? std::vector<int32_t>() : placement.places();
}

StageBlocks declare_weights(const model::Model& model, const StageShare& share,
                            ParameterStore& store) {
  StageBlocks blocks;
  if (share.first_stage || (share.last_stage && model.copies_embedding()))
    blocks.embedding =
        add_matrix(store, kEmbeddingLayer, kEmbeddingName, model.vocabulary, model.hidden);
  for (const int32_t layer : share.layers)
    declare_layer(model, layer, share, blocks.layers[layer], store);
  if (share.last_stage) {
    blocks.head.epsilon = model.norm_epsilon;
    if (model.tied_embeddings && share.first_stage) {
      blocks.head.table = blocks.embedding;
    } else {
      blocks.head.table =
          add_matrix(store, kHeadLayer, model.tied_embeddings ? kEmbeddingName : "lm_head.weight",
                     model.vocabulary, model.hidden);
    }
    blocks.head.norm = add_norm(store, kHeadLayer, "model.norm.weight", model.hidden);
    for (int64_t i = model.num_layers(); i < std::ssize(model.layers); ++i)
      declare_module(model, static_cast<int32_t>(i), share, blocks, store);
  }
  return blocks;
}

}  // namespace piper::nn
