// Token FLOPs of count.h.
#include <piper/model/count.h>

#include <algorithm>

namespace piper::model {
namespace {

// Mean number of positions that a token attends to. Full: half of the sequence. A sliding span w:
// the first w tokens see half of it on average, the others all of it. A chunk of w: half of it.
double mean_context(int64_t sequence, int64_t span, bool chunked) {
  const auto s = static_cast<double>(sequence), w = static_cast<double>(span);
  if (span <= 0 || span >= sequence) return s / 2;
  return chunked ? w / 2 : w - w * w / (2 * s);
}

// The indexer scores every earlier position; attention itself then sees the top ones only.
double attended(const Attention& a, int64_t sequence) {
  return mean_context(sequence, a.indexer.is_used() ? a.indexer.top_k : a.window, a.chunked);
}

// `from`: width of what its queries are projected from.
void add_indexer(double hidden, double from, const Attention& a, int64_t sequence,
                 TokenFlops& out) {
  if (!a.indexer.has_weights()) return;
  const auto heads = static_cast<double>(a.indexer.heads),
             dim = static_cast<double>(a.indexer.head_dim);
  const double head_weights = a.kind == AttentionKind::kLatent ? heads : 0;
  out.attention_projections += 2 * (from * heads * dim + hidden * (dim + head_weights));
  out.attention_scores += 2 * heads * dim * mean_context(sequence, 0, false);
}

void add_grouped(double hidden, const Attention& a, int64_t sequence, TokenFlops& out) {
  const int64_t gate = (a.output_gate ? a.query_width() : 0) + (a.head_gate ? a.num_heads : 0);
  const int64_t projected = a.query_width() + gate + a.projected_key_width() +
                            a.projected_value_width() + a.output_width();
  out.attention_projections += 2 * hidden * static_cast<double>(projected);
  out.attention_scores +=
      2 * static_cast<double>(a.query_width() + a.output_width()) * attended(a, sequence);
  add_indexer(hidden, hidden, a, sequence, out);
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
  out.attention_scores += 2 * heads * (query_dim + value_dim) * attended(a, sequence);
  add_indexer(hidden, rank, a, sequence, out);
}

// Linear in the sequence: read, correct and write a state of key_head_dim x value_head_dim a head
// (Gated DeltaNet, arXiv 2412.06464, eq. 10, in its recurrent form), and the convolution before it.
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
  // The projection that gives the layer its input, the gate, the way out.
  out.inputs = 2 * 3 * hidden * static_cast<double>(layer.input_width);
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
    const int64_t positions = model.trained_positions(static_cast<int64_t>(i), sequence);
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
    out.inputs += flops.inputs;
  }
  return out;
}

}  // namespace piper::model
