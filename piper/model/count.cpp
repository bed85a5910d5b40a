#include <piper/model/count.h>

#include <algorithm>

namespace piper::model {
namespace {

int64_t qk_norm_parameters(const Attention& a) {
  switch (a.qk_norm) {
    case QkNorm::kNone:
    case QkNorm::kUnweighted:
      return 0;
    case QkNorm::kPerHead:
      return (a.projected_key_width() > 0 ? 2 : 1) * a.head_dim;
    case QkNorm::kFull:
      return a.query_width() + a.projected_key_width();
  }
  return 0;
}

// Queries, one key head, the norms of both; in latent attention a weight a head too.
int64_t indexer_parameters(int64_t hidden, const Attention& a) {
  const Indexer& i = a.indexer;
  if (!i.has_weights()) return 0;
  const bool latent = a.kind == AttentionKind::kLatent;
  const int64_t from = latent ? a.latent.query_rank : hidden;
  return from * i.heads * i.head_dim + hidden * i.head_dim + 2 * i.head_dim +
         (latent ? hidden * i.heads : 0);
}

int64_t grouped_parameters(int64_t hidden, const Attention& a) {
  const int64_t query = a.query_width(), key = a.projected_key_width(),
                value = a.projected_value_width();
  const int64_t gate = (a.output_gate ? query : 0) + (a.head_gate ? a.num_heads : 0);
  const int64_t weights = hidden * (query + gate + key + value + a.output_width());
  const int64_t biases = (a.query_bias ? query : 0) + (a.gate_bias ? query : 0) +
                         (a.key_bias ? key : 0) + (a.value_bias ? value : 0) +
                         (a.output_bias ? hidden : 0);
  return weights + biases + (a.sinks ? a.num_heads : 0) + qk_norm_parameters(a) +
         indexer_parameters(hidden, a);
}

// The biases of a low-rank projection sit on its first factor (DeepSeek's q_a_proj,
// kv_a_proj_with_mqa).
int64_t latent_parameters(int64_t hidden, const Attention& a) {
  const LatentAttention& l = a.latent;
  const int64_t query = a.num_heads * (l.nope_head_dim + l.rope_head_dim);
  const int64_t low_rank = l.key_value_rank + l.rope_head_dim;
  int64_t total = l.query_rank > 0 ? hidden * l.query_rank + l.query_rank + l.query_rank * query
                                   : hidden * query;
  total += hidden * low_rank + l.key_value_rank;
  total += l.key_value_rank * a.num_heads * (l.nope_head_dim + l.value_head_dim);
  total += a.num_heads * l.value_head_dim * hidden;
  total += (a.query_bias ? l.query_rank : 0) + (a.key_bias ? low_rank : 0) +
           (a.output_bias ? hidden : 0);
  return total + indexer_parameters(hidden, a);
}

// Projections to q, k, v, z and to the two gates b, a; a depthwise convolution over q, k, v; a
// decay and a step size a head; a norm over the head's values; the way out.
int64_t gated_delta_parameters(int64_t hidden, const GatedDeltaAttention& g) {
  const int64_t key = g.key_heads * g.key_head_dim;
  const int64_t value = g.value_heads * g.value_head_dim;
  return hidden * (2 * key + 2 * value + 2 * g.value_heads) + (2 * key + value) * g.conv_kernel +
         2 * g.value_heads + g.value_head_dim + value * hidden;
}

int64_t attention_parameters(int64_t hidden, const Attention& a) {
  switch (a.kind) {
    case AttentionKind::kGrouped:
      return grouped_parameters(hidden, a);
    case AttentionKind::kLatent:
      return latent_parameters(hidden, a);
    case AttentionKind::kGatedDelta:
      return gated_delta_parameters(hidden, a.delta);
  }
  return 0;
}

int64_t mlp_parameters(int64_t hidden, int64_t ffn, int64_t num_matrices, bool bias) {
  if (ffn == 0) return 0;
  return num_matrices * hidden * ffn + (bias ? (num_matrices - 1) * ffn + hidden : 0);
}

int64_t router_parameters(int64_t hidden, const FeedForward& f) {
  return f.num_experts * hidden + (f.router_bias ? f.num_experts : 0) +
         (f.selection_bias && f.selection_bias_is_parameter ? f.num_experts : 0) +
         (f.shared_gate ? hidden : 0) + (f.router_scales ? hidden + f.num_experts : 0);
}

// The layers' own tables stand side by side in one, beside a projection of the token's embedding to
// all of them and a norm that they share (Gemma 3n, Gemma 4).
int64_t input_embedding(const Model& model) {
  int64_t widths = 0, norm = 0;
  for (const Layer& layer : model.layers) {
    widths += layer.input_width;
    norm = std::max(norm, layer.input_width);
  }
  return (model.input_vocabulary + model.hidden) * widths + norm;
}

// Each with one layer of the model's kind (DeepSeek-V3, section 2.2).
int64_t next_token_layer_parameters(const Model& model) {
  const int64_t depth = model.mtp_depth > 0 ? model.mtp_depth : model.num_next_token_layers;
  if (depth == 0 || model.layers.empty()) return 0;
  return depth * (count_layer(model, model.layers.back()).total() + mtp_join_parameters(model));
}

}  // namespace

int64_t mtp_join_parameters(const Model& model) {
  return 2 * model.hidden * model.hidden + 3 * model.hidden;
}

int64_t Parameters::total() const { return sum().total() + embedding + head + final_norm; }

LayerParameters Parameters::sum() const {
  LayerParameters sum;
  for (const LayerParameters& layer : layers) {
    sum.attention += layer.attention;
    sum.router += layer.router;
    sum.routed_experts += layer.routed_experts;
    sum.shared_experts += layer.shared_experts;
    sum.dense_mlp += layer.dense_mlp;
    sum.norms += layer.norms;
    sum.inputs += layer.inputs;
  }
  return sum;
}

LayerParameters count_layer(const Model& model, const Layer& layer) {
  const FeedForward& f = layer.feed_forward;
  LayerParameters out;
  out.attention = attention_parameters(model.hidden, layer.attention);
  out.norms = (layer.num_norms + (layer.input_width > 0 ? 1 : 0)) * model.hidden *
              (model.norm_has_bias ? 2 : 1);
  out.inputs = 2 * model.hidden * layer.input_width;
  if (!f.is_moe()) {
    out.dense_mlp = mlp_parameters(model.hidden, f.ffn, f.num_matrices, f.bias);
    return out;
  }
  out.router = router_parameters(model.hidden, f);
  out.routed_experts =
      f.num_experts * mlp_parameters(model.hidden, f.ffn, f.num_matrices, f.expert_bias);
  out.shared_experts =
      mlp_parameters(model.hidden, f.shared_ffn, f.num_dense_matrices, f.bias) +
      mlp_parameters(model.hidden, f.parallel_dense_ffn, f.num_dense_matrices, f.bias);
  return out;
}

EndParameters count_ends(const Model& model) {
  EndParameters ends{.table = model.vocabulary * model.hidden};
  ends.embedding = ends.table + model.learned_positions * model.hidden + input_embedding(model);
  ends.head =
      (model.tied_embeddings ? 0 : ends.table) + (model.lm_head_bias ? model.vocabulary : 0);
  ends.final_norm = model.final_norm ? model.hidden * (model.norm_has_bias ? 2 : 1) : 0;
  return ends;
}

Parameters count_parameters(const Model& model) {
  Parameters out;
  for (int64_t i = 0; i < model.num_layers(); ++i)
    out.layers.push_back(count_layer(model, model.layers[static_cast<size_t>(i)]));
  const EndParameters ends = count_ends(model);
  out.embedding = ends.embedding;
  out.head = ends.head;
  out.final_norm = ends.final_norm;
  out.next_token_layers = next_token_layer_parameters(model);
  return out;
}

int64_t active_parameters(const Model& model, bool with_embedding) {
  const Parameters parameters = count_parameters(model);
  int64_t active = parameters.total();
  for (size_t i = 0; i < parameters.layers.size(); ++i) {
    const FeedForward& f = model.layers[i].feed_forward;
    if (f.is_moe())
      active -= parameters.layers[i].routed_experts / f.num_experts * (f.num_experts - f.top_k);
  }
  return with_embedding || model.tied_embeddings ? active : active - parameters.embedding;
}

}  // namespace piper::model
