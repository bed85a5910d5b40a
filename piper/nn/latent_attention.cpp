#include <piper/nn/causal_attention.h>
#include <piper/nn/latent_attention.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

#include <utility>

namespace piper::nn {
namespace {

// transformers leaves the norms of the latents at this, whatever the model's is.
constexpr double kLatentEpsilon = 1e-6;

// The widths of a head.
struct Widths {
  int64_t heads, nope, rope, value, query;
  explicit Widths(const LatentAttentionBlock& block)
      : heads(block.num_heads),
        nope(block.shape.nope_head_dim),
        rope(block.shape.rope_head_dim),
        value(block.shape.value_head_dim),
        query(nope + rope) {}
};

// [T, heads * width] -> [T, heads, width], a view.
at::Tensor by_head(const at::Tensor& x, int64_t width) { return x.unflatten(1, {-1, width}); }

// [T, heads, width] -> [B, heads, S, width], a view.
at::Tensor by_sequence(const at::Tensor& x, int64_t sequence) {
  return x.unflatten(0, {-1, sequence}).transpose(1, 2);
}

// What the attention kernel reads, heads by tokens: keys, and values as wide as the keys.
struct Expanded {
  at::Tensor key, value;  // [T, H, nope + rope]
};

at::Tensor padded(const at::Tensor& x_THv, const Widths& w) {
  if (w.value == w.query) return x_THv;
  at::Tensor wide = at::empty({x_THv.size(0), w.heads, w.query}, x_THv.options());
  wide.narrow(2, 0, w.value).copy_(x_THv);
  wide.narrow(2, w.value, w.query - w.value).zero_();
  return wide;
}

Expanded expand(const LatentAttentionBlock& block, const at::Tensor& kv_a, const at::Tensor& kv) {
  const Widths w(block);
  const at::Tensor heads = by_head(kv, w.nope + w.value);
  const at::Tensor key = at::empty({kv.size(0), w.heads, w.query}, kv.options());
  key.narrow(2, 0, w.nope).copy_(heads.narrow(2, 0, w.nope));
  key.narrow(2, w.nope, w.rope)
      .copy_(kv_a.narrow(1, block.shape.key_value_rank, w.rope).unsqueeze(1));
  return {key, padded(heads.narrow(2, w.nope, w.value), w)};
}

at::Tensor normalised_latent(const LatentAttentionBlock& block, const at::Tensor& kv_a) {
  const int64_t rank = block.shape.key_value_rank;
  const at::Tensor latent = at::empty({kv_a.size(0), rank}, kv_a.options());
  rms_norm_out(latent, kv_a.narrow(1, 0, rank), block.kv_a_norm->value, kLatentEpsilon);
  return latent;
}

// The two projections of norm(x), before their norms; q_a is q itself without a low-rank factor.
std::pair<at::Tensor, at::Tensor> project(const LatentAttentionBlock& block,
                                          const at::Tensor& x_TD) {
  const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
  const Weight* q = block.q_a != nullptr ? block.q_a : block.q_b;
  return {product(xn_TD, q->value.t()), product(xn_TD, block.kv_a->value.t())};
}

// From the gradients of the projections to that of norm(x), and of the first weights.
at::Tensor project_back(LatentAttentionBlock& block, const at::Tensor& gq, const at::Tensor& g_kv_a,
                        const at::Tensor& x_TD, Tape& tape) {
  Weight* q = block.q_a != nullptr ? block.q_a : block.q_b;
  tape.weights_part([&block, q, gq, g_kv_a, x_TD] {
    const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
    accumulate(q->gradient, q->beta(), gq, xn_TD);
    accumulate(block.kv_a->gradient, block.kv_a->beta(), g_kv_a, xn_TD);
  });
  at::Tensor gxn_TD = product(gq, q->value);
  product_out(gxn_TD, g_kv_a, block.kv_a->value, 1);
  return gxn_TD;
}

// The gradient of W_qa xn from that of q; q's own without a low-rank factor.
at::Tensor query_back(LatentAttentionBlock& block, const at::Tensor& gq, const at::Tensor& q_a,
                      Tape& tape) {
  if (block.q_a == nullptr) return gq;
  tape.weights_part([&block, gq, q_a] {
    accumulate(block.q_b->gradient, block.q_b->beta(), gq,
               rms_norm(q_a, block.q_a_norm->value, kLatentEpsilon));
  });
  at::Tensor g = product(gq, block.q_b->value);
  rms_norm_backward_(g, q_a, block.q_a_norm->value, kLatentEpsilon, block.q_a_norm->gradient,
                     block.q_a_norm->beta());
  return g;
}

// The gradient of kv_a from those of keys and values, its rope part still turned.
at::Tensor latent_back(LatentAttentionBlock& block, const at::Tensor& g_key,
                       const at::Tensor& g_value, const at::Tensor& kv_a, Tape& tape) {
  const Widths w(block);
  const int64_t rank = block.shape.key_value_rank;
  const at::Tensor g_kv_a = at::empty_like(kv_a);
  g_kv_a.narrow(1, rank, w.rope).copy_(g_key.narrow(2, w.nope, w.rope).sum(1));
  const at::Tensor g_kv = at::empty({kv_a.size(0), w.heads, w.nope + w.value}, kv_a.options());
  g_kv.narrow(2, 0, w.nope).copy_(g_key.narrow(2, 0, w.nope));
  g_kv.narrow(2, w.nope, w.value).copy_(g_value.narrow(2, 0, w.value));
  const at::Tensor g_flat = g_kv.flatten(1);
  tape.weights_part([&block, g_flat, kv_a] {
    accumulate(block.kv_b->gradient, block.kv_b->beta(), g_flat, normalised_latent(block, kv_a));
  });
  const at::Tensor g_latent = g_kv_a.narrow(1, 0, rank);
  product_out(g_latent, g_flat, block.kv_b->value);
  rms_norm_backward_(g_latent, kv_a.narrow(1, 0, rank), block.kv_a_norm->value, kLatentEpsilon,
                     block.kv_a_norm->gradient, block.kv_a_norm->beta());
  return g_kv_a;
}

// Turns the rope parts of queries and of kv_a, or gradients of them back, in place.
void turn_(const LatentAttentionBlock& block, const RopeTable& rope, const at::Tensor& q,
           const at::Tensor& kv_a, int64_t sequence, bool back) {
  const Widths w(block);
  rotate_(by_head(q, w.query).narrow(2, w.nope, w.rope), rope, sequence, back);
  rotate_(kv_a.narrow(1, block.shape.key_value_rank, w.rope).unsqueeze(1), rope, sequence, back);
}

}  // namespace

at::Tensor latent_attention_forward(LatentAttentionBlock& block, const RopeTable& rope,
                                    const at::Tensor& x_TD, int64_t sequence, Tape* tape) {
  const Widths w(block);
  auto [q_a, kv_a] = project(block, x_TD);
  at::Tensor q = q_a;
  if (block.q_a != nullptr)
    q = product(rms_norm(q_a, block.q_a_norm->value, kLatentEpsilon), block.q_b->value.t());
  else
    q_a.reset();
  turn_(block, rope, q, kv_a, sequence, false);
  const at::Tensor kv = product(normalised_latent(block, kv_a), block.kv_b->value.t());
  CausalAttention done;
  {
    const Expanded x = expand(block, kv_a, kv);
    done =
        causal_attention(by_sequence(by_head(q, w.query), sequence), by_sequence(x.key, sequence),
                         by_sequence(x.value, sequence), block.scale);
  }
  at::Tensor out = done.out_BSHd.flatten(0, 1);  // [T, H, query]
  done.out_BSHd.reset();
  out = out.narrow(2, 0, w.value).contiguous().flatten(1);
  if (tape != nullptr) tape->saved = {q_a, kv_a, q, kv, out, done.log_sum_exp};
  return block.share.add_product(x_TD, out, block.output->value.t());
}

at::Tensor latent_attention_backward(LatentAttentionBlock& block, const RopeTable& rope,
                                     const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                     int64_t sequence, Tape& tape) {
  const Widths w(block);
  const at::Tensor q_a = tape.saved.at(0), kv_a = tape.saved.at(1), q = tape.saved.at(2),
                   kv = tape.saved.at(3), out = tape.saved.at(4), log_sum_exp = tape.saved.at(5);
  tape.saved.clear();
  tape.weights_part([&block, gx1_TD, out] {
    accumulate(block.output->gradient, block.output->beta(), gx1_TD, out);
  });
  CausalAttentionGradients g;
  {
    const at::Tensor g_out = padded(by_head(product(gx1_TD, block.output->value), w.value), w);
    const Expanded x = expand(block, kv_a, kv);
    const at::Tensor wide = padded(by_head(out, w.value), w);
    g = causal_attention_backward(by_sequence(g_out, sequence),
                                  by_sequence(by_head(q, w.query), sequence),
                                  by_sequence(x.key, sequence), by_sequence(x.value, sequence),
                                  {wide.unflatten(0, {-1, sequence}), log_sum_exp}, block.scale);
  }
  const at::Tensor gq = g.q_BSHd.flatten(0, 1);
  const at::Tensor g_kv_a =
      latent_back(block, g.k_BSHd.flatten(0, 1), g.v_BSHd.flatten(0, 1), kv_a, tape);
  turn_(block, rope, gq.flatten(1), g_kv_a, sequence, true);
  g.k_BSHd.reset();
  g.v_BSHd.reset();
  at::Tensor gx_TD =
      project_back(block, query_back(block, gq.flatten(1), q_a, tape), g_kv_a, x_TD, tape);
  block.share.norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                             block.norm->beta(), gx1_TD);
  return gx_TD;
}

Projected latent_projection_forward(LatentAttentionBlock& block, const RopeTable& rope,
                                    const at::Tensor& x_TD, int64_t own_sequence, Tape* tape) {
  auto [q_a, kv_a] = project(block, x_TD);
  at::Tensor q = q_a;
  if (block.q_a != nullptr) {
    q = product(rms_norm(q_a, block.q_a_norm->value, kLatentEpsilon), block.q_b->value.t());
    if (tape != nullptr) tape->saved = {q_a};
  }
  turn_(block, rope, q, kv_a, own_sequence, false);
  return {q, kv_a};
}

at::Tensor latent_projection_backward(LatentAttentionBlock& block, const RopeTable& rope,
                                      const Projected& g, const at::Tensor& gx1_TD,
                                      const at::Tensor& x_TD, int64_t own_sequence, Tape& tape) {
  const at::Tensor q_a = block.q_a != nullptr ? tape.saved.at(0) : at::Tensor();
  tape.saved.clear();
  turn_(block, rope, g.queries, g.keys_and_values, own_sequence, true);
  at::Tensor gx_TD =
      project_back(block, query_back(block, g.queries, q_a, tape), g.keys_and_values, x_TD, tape);
  block.share.norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                             block.norm->beta(), gx1_TD);
  return gx_TD;
}

namespace {

// It holds the latents and what they expand to, for all tokens of the sequences, in order, or for
// those that a step of a ring reads.
struct AllTokens {
  at::Tensor kv_a;
  Expanded x;
};

AllTokens expand_tokens(const LatentAttentionBlock& block, const at::Tensor& kv_a) {
  const at::Tensor kv = product(normalised_latent(block, kv_a), block.kv_b->value.t());
  return {kv_a, expand(block, kv_a, kv)};
}

AllTokens expand_all(const LatentAttentionBlock& block, const ContextShare& context,
                     const at::Tensor& by_rank, int64_t sequences) {
  return expand_tokens(block, context.in_order(by_rank, sequences).flatten(0, 1));
}

}  // namespace

at::Tensor latent_attention_forward(LatentAttentionBlock& block, const ContextShare& context,
                                    const at::Tensor& x_TD, const Projected& p,
                                    int64_t own_sequence, Tape* tape) {
  const Widths w(block);
  CausalAttention done;
  {
    const int64_t sequences = p.queries.size(0) / own_sequence;
    const Expanded x = expand_all(block, context, p.keys_and_values, sequences).x;
    done =
        causal_attention(by_sequence(by_head(p.queries, w.query), own_sequence),
                         by_sequence(x.key, own_sequence * context.count),
                         by_sequence(x.value, own_sequence * context.count), context, block.scale);
  }
  at::Tensor out = done.out_BSHd.flatten(0, 1);  // [T, H, query]
  done.out_BSHd.reset();
  out = out.narrow(2, 0, w.value).contiguous().flatten(1);
  if (tape != nullptr) tape->saved = {out, done.log_sum_exp};
  return block.share.add_product(x_TD, out, block.output->value.t());
}

Projected latent_attention_backward(LatentAttentionBlock& block, const ContextShare& context,
                                    const at::Tensor& gx1_TD, const Projected& p,
                                    int64_t own_sequence, Tape& tape) {
  const Widths w(block);
  const at::Tensor out = tape.saved.at(0), log_sum_exp = tape.saved.at(1);
  tape.saved.clear();
  tape.weights_part([&block, gx1_TD, out] {
    accumulate(block.output->gradient, block.output->beta(), gx1_TD, out);
  });
  const int64_t sequences = p.queries.size(0) / own_sequence;
  CausalAttentionGradients g;
  at::Tensor kv_a;
  {
    const at::Tensor g_out = padded(by_head(product(gx1_TD, block.output->value), w.value), w);
    const at::Tensor wide = padded(by_head(out, w.value), w);
    const AllTokens all = expand_all(block, context, p.keys_and_values, sequences);
    kv_a = all.kv_a;
    g = causal_attention_backward(
        by_sequence(g_out, own_sequence), by_sequence(by_head(p.queries, w.query), own_sequence),
        by_sequence(all.x.key, own_sequence * context.count),
        by_sequence(all.x.value, own_sequence * context.count),
        {wide.unflatten(0, {-1, own_sequence}), log_sum_exp}, context, block.scale);
  }
  const at::Tensor g_kv_a =
      latent_back(block, g.k_BSHd.flatten(0, 1), g.v_BSHd.flatten(0, 1), kv_a, tape);
  return {g.q_BSHd.flatten(0, 1).flatten(1), context.by_rank(g_kv_a.unflatten(0, {sequences, -1}))};
}

namespace {

AllTokens expand_step(const LatentAttentionBlock& block, const RingStep& step,
                      const at::Tensor& keys_values_TC, int64_t own_sequence) {
  return expand_tokens(block,
                       step.keys(keys_values_TC.unflatten(0, {-1, own_sequence}), 1).flatten(0, 1));
}

int64_t keys_of(const RingStep& step, int64_t own_sequence) {
  return step.reads_early_keys() ? own_sequence / 2 : own_sequence;
}

}  // namespace

HeadOutputs latent_ring_step_forward(const LatentAttentionBlock& block, const RingStep& step,
                                     const Projected& p, const HeadOutputs& before,
                                     int64_t own_sequence) {
  const Widths w(block);
  CausalAttention made;
  {
    const Expanded x = expand_step(block, step, p.keys_and_values, own_sequence).x;
    const int64_t keys = keys_of(step, own_sequence);
    made = ring_attention(by_sequence(by_head(p.queries, w.query), own_sequence),
                          by_sequence(x.key, keys), by_sequence(x.value, keys), step, block.scale);
  }
  made.out_BSHd = made.out_BSHd.narrow(3, 0, w.value);
  CausalAttention so_far;
  if (before.out.defined())
    so_far = {before.out.view({-1, own_sequence, w.heads, w.value}), before.log_sum_exp};
  made = merge_by_log_sum_exp(so_far, made, step);
  return {made.out_BSHd.view({p.queries.size(0), -1}), made.log_sum_exp};
}

Projected latent_ring_step_backward(LatentAttentionBlock& block, const RingStep& step,
                                    const at::Tensor& g_out_TC, const Projected& p,
                                    const HeadOutputs& kept, const at::Tensor& g_queries_TC,
                                    int64_t own_sequence) {
  const Widths w(block);
  const int64_t keys = keys_of(step, own_sequence);
  CausalAttentionGradients g;
  at::Tensor kv_a;
  {
    const at::Tensor g_out = padded(by_head(g_out_TC, w.value), w);
    const at::Tensor wide = padded(by_head(kept.out, w.value), w);
    const AllTokens read = expand_step(block, step, p.keys_and_values, own_sequence);
    kv_a = read.kv_a;
    g = ring_attention_backward(
        by_sequence(g_out, own_sequence), by_sequence(by_head(p.queries, w.query), own_sequence),
        by_sequence(read.x.key, keys), by_sequence(read.x.value, keys),
        {wide.unflatten(0, {-1, own_sequence}), kept.log_sum_exp}, step, block.scale);
  }
  Tape at_once;
  const at::Tensor g_kv_a =
      latent_back(block, g.k_BSHd.flatten(0, 1), g.v_BSHd.flatten(0, 1), kv_a, at_once);
  at::Tensor part_TC = g_kv_a;
  if (step.reads_early_keys()) {
    part_TC = at::zeros_like(p.keys_and_values);
    step.keys(part_TC.unflatten(0, {-1, own_sequence}), 1).copy_(g_kv_a.unflatten(0, {-1, keys}));
  }
  const at::Tensor before = g_queries_TC.defined()
                                ? g_queries_TC.view({-1, own_sequence, w.heads, w.query})
                                : at::Tensor();
  const at::Tensor queries = add_queries_gradient(before, g.q_BSHd, own_sequence, step);
  return {queries.view({p.queries.size(0), -1}), part_TC};
}

}  // namespace piper::nn
