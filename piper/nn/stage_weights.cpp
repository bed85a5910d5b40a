#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/model/shared_layer.h>
#include <piper/nn/stage_weights.h>

#include <cmath>
#include <string>
#include <vector>

namespace piper::nn {
namespace {

constexpr int32_t kEmbeddingLayer = -1;
constexpr int32_t kHeadLayer = -2;
const char kEmbeddingName[] = "model.embed_tokens.weight";

// What the ranks of a stage hold whole: with ranks that share matrices, each has a gradient of its
// own tokens or heads.
Sharding whole_on(const TensorShare& tensor) {
  return {.replicas = tensor.count > 1 ? strategy::Axis::kStage : strategy::Axis::kData};
}

// What ranks share, a part each.
Sharding part_on(const TensorShare& tensor) {
  return {.replicas = strategy::Axis::kData, .index = tensor.index, .count = tensor.count};
}

// The place of a rank's `count` rows or columns among all.
Cut cut_of(const TensorShare& tensor, int64_t dim, int64_t count) {
  if (tensor.count == 1) return {};
  return {.dim = dim, .first = tensor.index * count, .whole = tensor.count * count};
}

// Declares the parameters of a stage whose ranks share matrices as `tensor` says.
struct Declaring {
  ParameterStore& store;
  ParameterStore& copies;  // of experts
  TensorShare tensor;

  Weight* add(WeightSpec spec) const {
    spec.sharding = whole_on(tensor);
    return store.add(std::move(spec));
  }

  Weight* matrix(int32_t layer, std::string name, int64_t rows, int64_t columns,
                 std::vector<PieceSpec> pieces = {}) const {
    return add({.name = std::move(name),
                .shape = {rows, columns},
                .layer = layer,
                .pieces = std::move(pieces)});
  }

  // This rank's part, `rows` x `columns`, of a matrix that is cut along `dim`.
  Weight* part(int64_t dim, int32_t layer, std::string name, int64_t rows, int64_t columns,
               std::vector<PieceSpec> pieces = {}) const {
    for (PieceSpec& piece : pieces) piece.cut = cut_of(tensor, dim, piece.count);
    return store.add({.name = std::move(name),
                      .shape = {rows, columns},
                      .sharding = part_on(tensor),
                      .layer = layer,
                      .cut = cut_of(tensor, dim, dim == 0 ? rows : columns),
                      .pieces = std::move(pieces)});
  }

  Weight* norm(int32_t layer, std::string name, int64_t width) const {
    return add({.name = std::move(name), .shape = {width}, .layer = layer, .decays = false});
  }

  Weight* bias(int32_t layer, std::string name, int64_t width,
               std::vector<PieceSpec> pieces = {}) const {
    return add({.name = std::move(name),
                .shape = {width},
                .layer = layer,
                .decays = false,
                .initial = 0,
                .pieces = std::move(pieces)});
  }

  // This rank's part of a bias that is cut.
  Weight* part_of_bias(int32_t layer, std::string name, int64_t width,
                       std::vector<PieceSpec> pieces = {}) const {
    for (PieceSpec& piece : pieces) piece.cut = cut_of(tensor, 0, piece.count);
    return store.add({.name = std::move(name),
                      .shape = {width},
                      .sharding = part_on(tensor),
                      .layer = layer,
                      .decays = false,
                      .initial = 0,
                      .cut = cut_of(tensor, 0, width),
                      .pieces = std::move(pieces)});
  }
};

// Hugging Face names of a feed-forward: Mixtral's differ from everyone else's.
struct FeedForwardNames {
  std::string prefix, gate, up, down;
};

FeedForwardNames names_of(const model::Model& model, int32_t layer, bool mixture) {
  if (mixture && model.family == "mixtral")
    return {fmt::format("model.layers.{}.block_sparse_moe", layer), "w1", "w3", "w2"};
  return {fmt::format("model.layers.{}.mlp", layer), "gate_proj", "up_proj", "down_proj"};
}

double latent_scale(const model::Model& model, const model::LatentAttention& a) {
  return rope_score_factor(model.rope) /
         std::sqrt(static_cast<double>(a.nope_head_dim + a.rope_head_dim));
}

void declare_latent(const model::Model& model, int32_t layer, LatentAttentionBlock& block,
                    const Declaring& to) {
  constexpr int64_t kRows = 0, kColumns = 1;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const model::LatentAttention& a = block.shape;
  const int64_t query = block.num_heads * (a.nope_head_dim + a.rope_head_dim);
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
    return to.matrix(layer, prefix + name + ".weight", rows, columns);
  };
  const auto part = [&](int64_t dimension, const char* name, int64_t rows, int64_t columns) {
    return to.part(dimension, layer, prefix + name + ".weight", rows, columns);
  };
  if (a.query_rank > 0) {
    block.q_a = matrix("q_a_proj", a.query_rank, model.hidden);
    block.q_b = part(kRows, "q_b_proj", query, a.query_rank);
  } else {
    block.q_b = part(kRows, "q_proj", query, model.hidden);
  }
  block.kv_a = matrix("kv_a_proj_with_mqa", a.key_value_rank + a.rope_head_dim, model.hidden);
  block.kv_b = part(kRows, "kv_b_proj", block.num_heads * (a.nope_head_dim + a.value_head_dim),
                    a.key_value_rank);
  block.output = part(kColumns, "o_proj", model.hidden, block.num_heads * a.value_head_dim);
}

void declare_latent_norms(int32_t layer, LatentAttentionBlock& block, const Declaring& to) {
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  if (block.shape.query_rank > 0)
    block.q_a_norm = to.norm(layer, prefix + "q_a_layernorm.weight", block.shape.query_rank);
  block.kv_a_norm = to.norm(layer, prefix + "kv_a_layernorm.weight", block.shape.key_value_rank);
}

// `whole_kv`: rows of all keys, and of all values, where every rank holds them
// (AttentionBlock::kv); else 0.
void declare_attention_matrices(const model::Model& model, int32_t layer, AttentionBlock& block,
                                int64_t whole_kv, const Declaring& to) {
  const model::Attention& a = block.shape;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const int64_t q = a.query_width(), kv = a.key_width();
  if (whole_kv > 0) {
    block.qkv = to.part(0, layer, prefix + "q_proj.weight", q, model.hidden);
    block.kv =
        to.matrix(layer, prefix + "kv_proj.weight", 2 * whole_kv, model.hidden,
                  {{.name = prefix + "k_proj.weight", .first = 0, .count = whole_kv},
                   {.name = prefix + "v_proj.weight", .first = whole_kv, .count = whole_kv}});
  } else {
    block.qkv = to.part(0, layer, prefix + "qkv_proj.weight", q + 2 * kv, model.hidden,
                        {{.name = prefix + "q_proj.weight", .first = 0, .count = q},
                         {.name = prefix + "k_proj.weight", .first = q, .count = kv},
                         {.name = prefix + "v_proj.weight", .first = q + kv, .count = kv}});
  }
  block.output = to.part(1, layer, prefix + "o_proj.weight", model.hidden, q);
}

// All three projections or none, and the output's.
void declare_attention_biases(const model::Model& model, int32_t layer, AttentionBlock& block,
                              int64_t whole_kv, const Declaring& to) {
  const model::Attention& a = block.shape;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  const int64_t q = a.query_width(), kv = a.key_width();
  if (a.query_bias && whole_kv > 0) {
    block.qkv_bias = to.part_of_bias(layer, prefix + "q_proj.bias", q);
    block.kv_bias =
        to.bias(layer, prefix + "kv_proj.bias", 2 * whole_kv,
                {{.name = prefix + "k_proj.bias", .first = 0, .count = whole_kv},
                 {.name = prefix + "v_proj.bias", .first = whole_kv, .count = whole_kv}});
  } else if (a.query_bias) {
    block.qkv_bias =
        to.part_of_bias(layer, prefix + "qkv_proj.bias", q + 2 * kv,
                        {{.name = prefix + "q_proj.bias", .first = 0, .count = q},
                         {.name = prefix + "k_proj.bias", .first = q, .count = kv},
                         {.name = prefix + "v_proj.bias", .first = q + kv, .count = kv}});
  }
  if (a.output_bias) block.output_bias = to.bias(layer, prefix + "o_proj.bias", model.hidden);
}

void declare_qk_norms(int32_t layer, AttentionBlock& block, const Declaring& to) {
  const model::Attention& a = block.shape;
  if (a.qk_norm == model::QkNorm::kNone) return;
  const bool full = a.qk_norm == model::QkNorm::kFull;
  const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
  block.q_norm = to.norm(layer, prefix + "q_norm.weight", (full ? a.num_heads : 1) * a.head_dim);
  block.k_norm = to.norm(layer, prefix + "k_norm.weight", (full ? a.num_kv_heads : 1) * a.head_dim);
}

void declare_dense(const model::Model& model, int32_t layer, int64_t whole_ffn,
                   const FeedForwardNames& names, DenseMlpBlock& block, const Declaring& to) {
  // Shared experts are held whole where ranks share other matrices.
  const bool is_dealt = block.share.count == to.tensor.count;
  const auto matrix = [&](int64_t dim, const char* name, int64_t rows, int64_t columns,
                          std::vector<PieceSpec> pieces) {
    return is_dealt ? to.part(dim, layer, names.prefix + name, rows, columns, std::move(pieces))
                    : to.matrix(layer, names.prefix + name, rows, columns, std::move(pieces));
  };
  const int64_t ffn = whole_ffn / block.share.count;
  block.gate_up = matrix(0, ".gate_up_proj.weight", 2 * ffn, model.hidden,
                         {{.name = names.prefix + ".gate_proj.weight", .first = 0, .count = ffn},
                          {.name = names.prefix + ".up_proj.weight", .first = ffn, .count = ffn}});
  block.down = matrix(1, ".down_proj.weight", model.hidden, ffn, {});
}

// Qwen's one shared expert has its name in the singular, and a gate.
void declare_shared(const model::Model& model, int32_t layer, const model::FeedForward& mixture,
                    DenseMlpBlock& block, const Declaring& to) {
  FeedForwardNames names = names_of(model, layer, false);
  const std::string mlp = names.prefix;
  names.prefix += mixture.shared_gate ? ".shared_expert" : ".shared_experts";
  declare_dense(model, layer, mixture.shared_ffn, names, block, to);
  if (mixture.shared_gate)
    block.gate = to.matrix(layer, mlp + ".shared_expert_gate.weight", 1, model.hidden);
}

// The parts of the two stored parameters of a rank that holds these experts, in this order.
struct ExpertPieces {
  std::vector<PieceSpec> gate_up, down;
};
ExpertPieces expert_pieces(const model::Model& model, int32_t layer,
                           const std::vector<int32_t>& held, const TensorShare& shared) {
  const FeedForwardNames names = names_of(model, layer, true);
  const int64_t ffn = model.layers[static_cast<size_t>(layer)].feed_forward.ffn / shared.count;
  const Cut rows = cut_of(shared, 0, ffn), columns = cut_of(shared, 1, ffn);
  ExpertPieces pieces;
  for (int64_t i = 0; i < std::ssize(held); ++i) {
    const std::string expert =
        fmt::format("{}.experts.{}.", names.prefix, held[static_cast<size_t>(i)]);
    pieces.gate_up.push_back({.name = expert + names.gate + ".weight",
                              .expert = i,
                              .first = 0,
                              .count = ffn,
                              .cut = rows});
    pieces.gate_up.push_back({.name = expert + names.up + ".weight",
                              .expert = i,
                              .first = ffn,
                              .count = ffn,
                              .cut = rows});
    pieces.down.push_back({.name = expert + names.down + ".weight",
                           .expert = i,
                           .first = 0,
                           .count = model.hidden,
                           .cut = columns});
  }
  return pieces;
}

// The homes of a rank's experts.
std::vector<int32_t> homes_of(const balance::ExpertPlacement& placement, int64_t ep_index) {
  std::vector<int32_t> held = placement.held(ep_index);
  held.resize(static_cast<size_t>(placement.num_experts() / placement.num_ranks()));
  return held;
}

// Ranks that route the same tokens send their rows to the same places.
ExpertPlaces places_of(const StageShare& share, const balance::ExpertPlacement& placement) {
  ExpertPlaces places;
  if (placement.is_plain()) return places;
  places.num_places = placement.num_places();
  places.first = {0};
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    const std::vector<int32_t> in_turn =
        share.divides_routed
            ? placement.places_from(e, share.ep_index)
            : std::vector(placement.copies_of(e).begin(), placement.copies_of(e).end());
    places.place.insert(places.place.end(), in_turn.begin(), in_turn.end());
    places.first.push_back(static_cast<int32_t>(places.place.size()));
  }
  return places;
}

void declare_experts(const model::Model& model, int32_t layer, const model::FeedForward& mixture,
                     const StageShare& share, LayerBlocks& blocks, const Declaring& to) {
  const FeedForwardNames names = names_of(model, layer, true);
  const int64_t ffn = mixture.ffn / share.experts.count;
  const balance::ExpertPlacement placement = placement_of(share, layer, mixture.num_experts);
  const std::vector<int32_t> homes = homes_of(placement, share.ep_index);
  ExpertPieces pieces = expert_pieces(model, layer, homes, share.experts);
  const int64_t local = std::ssize(homes);
  blocks.gate.places = places_of(share, placement);
  ExpertsBlock& block = blocks.experts;
  block.local_experts = std::ssize(placement.held(share.ep_index));
  const TensorShare& shared = share.experts;
  const Sharding sharding{.replicas = strategy::Axis::kExpertData,
                          .index = share.ep_index * shared.count + shared.index,
                          .count = share.ep * shared.count};
  block.gate_up = to.store.add({.name = names.prefix + ".experts.gate_up_proj",
                                .shape = {local, 2 * ffn, model.hidden},
                                .sharding = sharding,
                                .layer = layer,
                                .pieces = std::move(pieces.gate_up)});
  block.down = to.store.add({.name = names.prefix + ".experts.down_proj",
                             .shape = {local, model.hidden, ffn},
                             .sharding = sharding,
                             .layer = layer,
                             .pieces = std::move(pieces.down)});
  const int64_t copies = block.local_experts - local;
  if (copies == 0) return;
  const Sharding copied{.replicas = strategy::Axis::kExpert};
  block.copied_gate_up = to.copies.add({.name = names.prefix + ".experts.copied_gate_up_proj",
                                        .shape = {copies, 2 * ffn, model.hidden},
                                        .sharding = copied,
                                        .layer = layer});
  block.copied_down = to.copies.add({.name = names.prefix + ".experts.copied_down_proj",
                                     .shape = {copies, model.hidden, ffn},
                                     .sharding = copied,
                                     .layer = layer});
}

void declare_layer(const model::Model& model, int32_t layer, const StageShare& share,
                   LayerBlocks& blocks, const Declaring& to) {
  const model::Layer& shape = model.layers[static_cast<size_t>(layer)];
  const model::FeedForward& ffn = shape.feed_forward;
  const double epsilon = model.norm_epsilon;
  const bool latent = shape.attention.kind == model::AttentionKind::kLatent;
  const TensorShare& tensor = share.tensor;
  const model::Attention own = model::share_of(shape.attention, tensor.count);
  const int64_t whole_kv =
      model::shares_key_heads(shape.attention, tensor.count) ? shape.attention.key_width() : 0;
  if (latent)
    blocks.latent = {.num_heads = own.num_heads,
                     .shape = own.latent,
                     .epsilon = epsilon,
                     .scale = latent_scale(model, own.latent),
                     .share = tensor};
  else
    blocks.attention = {
        .shape = own,
        .epsilon = epsilon,
        .share = tensor,
        .first_kv_row =
            model::first_key_head(shape.attention, tensor.count, tensor.index) * own.head_dim};
  blocks.dense_mlp.epsilon = epsilon;
  const TensorShare whole;
  const TensorShare& routed = share.divides_routed ? tensor : whole;
  const TensorShare& counted = share.divides_routed ? whole : tensor;
  if (ffn.is_moe())
    blocks.dense_mlp.counted = counted;  // shared experts are whole everywhere
  else
    blocks.dense_mlp.share = tensor;
  blocks.gate = {.epsilon = epsilon,
                 .share = routed,
                 .counted = counted,
                 .gathered = share.gathers_tokens ? share.experts : whole,
                 .divided = share.divides_rows ? tensor : whole,
                 .copies = share.copies,
                 .peers = share.peers,
                 .peer = share.ep_index,
                 .top_k = ffn.top_k,
                 .normalised = ffn.normalise_top_k};
  blocks.gate.context = share.context;
  blocks.gate.sigmoid = ffn.score == model::Score::kSigmoid;
  blocks.gate.scaling = ffn.routed_scaling;
  blocks.gate.num_groups = ffn.num_groups;
  blocks.gate.top_groups = ffn.top_groups;
  if (latent)
    declare_latent(model, layer, blocks.latent, to);
  else
    declare_attention_matrices(model, layer, blocks.attention, whole_kv, to);
  if (ffn.is_moe()) {
    blocks.gate.router = to.matrix(layer, names_of(model, layer, true).prefix + ".gate.weight",
                                   ffn.num_experts, model.hidden);
    declare_experts(model, layer, ffn, share, blocks, to);
    if (ffn.shared_ffn > 0) declare_shared(model, layer, ffn, blocks.dense_mlp, to);
  } else {
    declare_dense(model, layer, ffn.ffn, names_of(model, layer, false), blocks.dense_mlp, to);
  }
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  blocks.attention.norm = blocks.latent.norm =
      to.norm(layer, prefix + "input_layernorm.weight", model.hidden);
  blocks.gate.norm = blocks.dense_mlp.norm =
      to.norm(layer, prefix + "post_attention_layernorm.weight", model.hidden);
  if (latent) {
    declare_latent_norms(layer, blocks.latent, to);
  } else {
    declare_qk_norms(layer, blocks.attention, to);
    declare_attention_biases(model, layer, blocks.attention, whole_kv, to);
  }
  if (ffn.is_moe() && ffn.selection_bias)
    blocks.gate.bias =
        to.add({.name = names_of(model, layer, true).prefix + ".gate.e_score_correction_bias",
                .shape = {ffn.num_experts},
                .layer = layer,
                .decays = false,
                .initial = 0,
                .is_main = true});
}

// The names of DeepSeek-V3's released weights. The module's tables are the model's.
void declare_module(const model::Model& model, int32_t layer, const StageShare& share,
                    StageBlocks& blocks, const Declaring& to) {
  declare_layer(model, layer, share, blocks.layers[layer], to);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  MtpBlock& block = blocks.modules[layer];
  block.depth = model.mtp_depth_of(layer);
  block.epsilon = block.head.epsilon = model.norm_epsilon;
  block.embedding = blocks.embedding != nullptr ? blocks.embedding : blocks.head.table;
  block.head.table = blocks.head.table;
  if (!share.divides_tokens) block.counted = share.tensor;
  // The ends of all sequences are with the first of the ranks that share them (ContextShare).
  blocks.layers[layer].gate.padding = block.depth;
  blocks.layers[layer].gate.own_padding = share.context.index == 0 ? block.depth : 0;
  block.previous_norm =
      block.depth == 1 ? blocks.head.norm : blocks.modules.at(layer - 1).head.norm;
  block.projection = to.matrix(layer, prefix + "eh_proj.weight", model.hidden, 2 * model.hidden);
  block.embedding_norm = to.norm(layer, prefix + "enorm.weight", model.hidden);
  block.state_norm = to.norm(layer, prefix + "hnorm.weight", model.hidden);
  block.head.norm = to.norm(layer, prefix + "shared_head.norm.weight", model.hidden);
}

}  // namespace

balance::ExpertPlacement placement_of(const StageShare& share, int32_t layer, int64_t num_experts) {
  const auto found = share.placements.find(layer);
  if (found == share.placements.end())
    return balance::ExpertPlacement::plain(num_experts, share.ep, share.redundant_experts);
  const balance::ExpertPlacement& placement = found->second;
  PIPER_CHECK(placement.num_ranks() == share.ep && placement.num_experts() == num_experts &&
                  placement.has_homes_first() &&
                  placement.num_places() == num_experts + share.redundant_experts,
              "a placement of this layer's experts on this group, equally many on every rank");
  return placement;
}

void place_experts(const model::Model& model, int32_t layer, const StageShare& share,
                   const balance::ExpertPlacement& placement, LayerBlocks& blocks,
                   ParameterStore& store) {
  ExpertPieces pieces =
      expert_pieces(model, layer, homes_of(placement, share.ep_index), share.experts);
  store.rename(blocks.experts.gate_up, std::move(pieces.gate_up));
  store.rename(blocks.experts.down, std::move(pieces.down));
  blocks.gate.places = places_of(share, placement);
}

StageBlocks declare_weights(const model::Model& model, const StageShare& share,
                            ParameterStore& store, ParameterStore& copies) {
  const Declaring to{store, copies, share.tensor};
  StageBlocks blocks;
  if (share.first_stage || (share.last_stage && model.copies_embedding()))
    blocks.embedding = to.matrix(kEmbeddingLayer, kEmbeddingName, model.vocabulary, model.hidden);
  for (const int32_t layer : share.layers)
    declare_layer(model, layer, share, blocks.layers[layer], to);
  if (share.last_stage) {
    blocks.head.epsilon = model.norm_epsilon;
    if (model.tied_embeddings && share.first_stage) {
      blocks.head.table = blocks.embedding;
    } else {
      blocks.head.table =
          to.matrix(kHeadLayer, model.tied_embeddings ? kEmbeddingName : "lm_head.weight",
                    model.vocabulary, model.hidden);
    }
    blocks.head.norm = to.norm(kHeadLayer, "model.norm.weight", model.hidden);
    for (int64_t i = model.num_layers(); i < std::ssize(model.layers); ++i)
      declare_module(model, static_cast<int32_t>(i), share, blocks, to);
  }
  return blocks;
}

}  // namespace piper::nn
