// Token FLOPs of count.h.
#include <piper/model/count.h>

#include <algorithm>

namespace piper::model {
namespace {

// Mean number of positions that a token attends to. Full: half of the sequence. A sliding span w: the first w tokens
// see half of it on average, the others all of it. A chunk of w: half of it.
double mean_context(int64_t sequence, int64_t span, bool chunked) {
  const auto s = static_cast<double>(sequence), w = static_cast<double>(span);
  if (span <= 0 || span >= sequence) return s / 2;
  return chunked ? w / 2 : w - w * w / (2 * s);
}

void add_grouped(double hidden, const Attention& a, int64_t sequence, TokenFlops& out) {
  const auto heads = static_cast<double>(a.num_heads * a.head_dim);
  const auto keys = static_cast<double>(a.num_kv_heads * a.head_dim);
  out.attention_projections += 2 * hidden * (heads * (a.output_gate ? 3 : 2) + 2 * keys);
  out.attention_scores += 4 * heads * mean_context(sequence, a.window, a.chunked);
}

void add_latent(double hidden, const Attention& a, int64_t sequence, TokenFlops& out) {
  const LatentAttention& l = a.latent;
  const auto heads = static_cast<double>(a.num_heads);
  const auto rank = static_cast<double>(l.query_rank),
             key_rank = static_cast<double>(l.key_value_rank);
  const auto query_dim = static_cast<double>(l.nope_head_dim + l.rope_head_dim);
  const auto value_dim = static_cast<double>(l.value_head_dim);
  const double query =
      rank > 0 ? hidden * rank + rank * heads * query_dim : hidden * heads * query_dim;
  const double key_value = hidden * (key_rank + static_cast<double>(l.rope_head_dim)) +
                           key_rank * heads * (static_cast<double>(l.nope_head_dim) + value_dim);
  out.attention_projections += 2 * (query + key_value + heads * value_dim * hidden);
  // The indexer scores every earlier position; attention itself then sees the top ones only.
  const int64_t span = l.index_heads > 0 ? l.index_top_k : a.window;
  out.attention_scores +=
      2 * heads * (query_dim + value_dim) * mean_context(sequence, span, a.chunked);
  if (l.index_heads == 0) return;
  const auto index_heads = static_cast<double>(l.index_heads),
             index_dim = static_cast<double>(l.index_head_dim);
  out.attention_projections +=
      2 * (rank * index_heads * index_dim + hidden * (index_dim + index_heads));
  out.attention_scores += 2 * index_heads * index_dim * mean_context(sequence, 0, false);
}

// Linear in the sequence: read, correct and write a state of key_head_dim x value_head_dim a head (Gated DeltaNet,
// arXiv 2412.06464, eq. 10, in its recurrent form), and the convolution before it.
void add_gated_delta(double hidden, const GatedDeltaAttention& g, TokenFlops& out) {
  const auto key = static_cast<double>(g.key_heads * g.key_head_dim);
  const auto value = static_cast<double>(g.value_heads * g.value_head_dim);
  out.attention_projections +=
      2 * hidden * (2 * key + 3 * value + 2 * static_cast<double>(g.value_heads));
  out.attention_scores += 2 * 3 * value * static_cast<double>(g.key_head_dim) +
                          2 * static_cast<double>(g.conv_kernel) * (2 * key + value);
}

}  // namespace

TokenFlops layer_token_flops(const Model& model, const Layer& layer, int64_t sequence) {
  TokenFlops out;
  const auto hidden = static_cast<double>(model.hidden);
  switch (layer.attention.kind) {
    case AttentionKind::kGrouped:
      add_grouped(hidden, layer.attention, sequence, out);
      break;
    case AttentionKind::kLatent:
      add_latent(hidden, layer.attention, sequence, out);
      break;
    case AttentionKind::kGatedDelta:
      add_gated_delta(hidden, layer.attention.delta, out);
      break;
  }
  const FeedForward& f = layer.feed_forward;
  const auto mlp = [&](int64_t matrices, int64_t ffn) {
    return 2 * static_cast<double>(matrices * ffn) * hidden;
  };
  if (!f.is_moe()) {
    out.dense_mlp = mlp(f.num_matrices, f.ffn);
    return out;
  }
  out.router = 2 * hidden * static_cast<double>(f.num_experts + (f.shared_gate ? 1 : 0));
  out.routed_experts = static_cast<double>(f.top_k) * mlp(f.num_matrices, f.ffn);
  out.shared_experts = mlp(f.num_dense_matrices, f.shared_ffn + f.parallel_dense_ffn);
  return out;
}

TokenFlops token_flops(const Model& model, int64_t sequence) {
  TokenFlops out;
  out.head = 2 * static_cast<double>(model.hidden) * static_cast<double>(model.vocabulary);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const int64_t positions = model.positions(static_cast<int64_t>(i), sequence);
    const TokenFlops flops = layer_token_flops(model, model.layers[i], positions);
    if (positions < sequence) {
      const double join = 2 * 2 * static_cast<double>(model.hidden * model.hidden);
      out.mtp += (join + flops.forward() + out.head) * static_cast<double>(positions) /
                 static_cast<double>(sequence);
      continue;
    }
    out.attention_projections += flops.attention_projections;
    out.attention_scores += flops.attention_scores;
    out.router += flops.router;
    out.routed_experts += flops.routed_experts;
    out.shared_experts += flops.shared_experts;
    out.dense_mlp += flops.dense_mlp;
  }
  return out;
}

}  // namespace piper::model
