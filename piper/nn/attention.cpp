#include <piper/nn/attention.h>
#include <piper/nn/causal_attention.h>
#include <piper/nn/product.h>

#include <utility>

namespace piper::nn {
namespace {

// Views of the three parts of qkv (or of its weight's gradient, by rows).
struct Parts {
  at::Tensor q, k, v;
};

Parts parts(const at::Tensor& qkv_TC, const model::Attention& a) {
  const int64_t q = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  return {qkv_TC.narrow(1, 0, q), qkv_TC.narrow(1, q, kv), qkv_TC.narrow(1, q + kv, kv)};
}

at::Tensor by_head(const at::Tensor& x_TC, const model::Attention& a) {
  return x_TC.unflatten(1, {-1, a.head_dim});  // [T, heads, head_dim]
}

// [T, heads * head_dim] -> [B, heads, S, head_dim], a view.
at::Tensor by_sequence(const at::Tensor& x_TC, const model::Attention& a, int64_t sequence) {
  return x_TC.unflatten(1, {-1, a.head_dim}).unflatten(0, {-1, sequence}).transpose(1, 2);
}

// The rows over which q and k are normalised: heads, or all heads together.
at::Tensor norm_rows(const at::Tensor& x_TC, const model::Attention& a) {
  return a.qk_norm == model::QkNorm::kPerHead ? by_head(x_TC, a) : x_TC;
}

// Normalised (where the model does) and rotated queries and keys. Without a normalisation in place,
// once, in the forward; else in new storage that leaves qkv as it is, and again in the backward.
Parts prepare(const AttentionBlock& block, const RopeTable& rope, const at::Tensor& qkv_TC,
              int64_t sequence, bool again) {
  const model::Attention& a = block.shape;
  Parts p = parts(qkv_TC, a);
  if (block.q_norm == nullptr && again) return p;
  if (block.q_norm != nullptr) {
    const at::Tensor q = at::empty_like(p.q, at::MemoryFormat::Contiguous);
    const at::Tensor k = at::empty_like(p.k, at::MemoryFormat::Contiguous);
    rms_norm_out(norm_rows(q, a), norm_rows(p.q, a), block.q_norm->value, block.epsilon);
    rms_norm_out(norm_rows(k, a), norm_rows(p.k, a), block.k_norm->value, block.epsilon);
    p.q = q;
    p.k = k;
  }
  if (a.rotary) {
    rotate_(by_head(p.q, a), rope, sequence, false);
    rotate_(by_head(p.k, a), rope, sequence, false);
  }
  return p;
}

// Gradients of q and k back through rotation and normalisation, in place.
void unprepare(AttentionBlock& block, const RopeTable& rope, const Parts& g,
               const at::Tensor& qkv_TC, int64_t sequence) {
  const model::Attention& a = block.shape;
  if (a.rotary) {
    rotate_(by_head(g.q, a), rope, sequence, true);
    rotate_(by_head(g.k, a), rope, sequence, true);
  }
  if (block.q_norm == nullptr) return;
  const Parts raw = parts(qkv_TC, a);
  rms_norm_backward_(norm_rows(g.q, a), norm_rows(raw.q, a), block.q_norm->value, block.epsilon,
                     block.q_norm->gradient, block.q_norm->beta());
  rms_norm_backward_(norm_rows(g.k, a), norm_rows(raw.k, a), block.k_norm->value, block.epsilon,
                     block.k_norm->gradient, block.k_norm->beta());
}

// From the gradients of q, k and v to the weight's gradient and the gradient of norm(x).
at::Tensor project_back(AttentionBlock& block, const Parts& g, const at::Tensor& x_TD, Tape& tape) {
  const int64_t q = g.q.size(1), kv = g.k.size(1);
  tape.weights_part([&block, g, x_TD, q, kv] {
    {
      const double beta = block.qkv->beta();
      const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
      accumulate(block.qkv->gradient.narrow(0, 0, q), beta, g.q, xn_TD);
      accumulate(block.qkv->gradient.narrow(0, q, kv), beta, g.k, xn_TD);
      accumulate(block.qkv->gradient.narrow(0, q + kv, kv), beta, g.v, xn_TD);
    }
    if (block.qkv_bias == nullptr) return;
    const double beta = block.qkv_bias->beta();
    accumulate_rows(block.qkv_bias->gradient.narrow(0, 0, q), beta, g.q);
    accumulate_rows(block.qkv_bias->gradient.narrow(0, q, kv), beta, g.k);
    accumulate_rows(block.qkv_bias->gradient.narrow(0, q + kv, kv), beta, g.v);
  });
  at::Tensor gxn_TD = product(g.q, block.qkv->value.narrow(0, 0, q));
  product_out(gxn_TD, g.k, block.qkv->value.narrow(0, q, kv), 1);
  product_out(gxn_TD, g.v, block.qkv->value.narrow(0, q + kv, kv), 1);
  return gxn_TD;
}

}  // namespace

at::Tensor attention_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t sequence, Tape* tape) {
  const model::Attention& a = block.shape;
  at::Tensor qkv_TC;
  {
    const at::Tensor xn_TD = rms_norm(x_TD, block.norm->value, block.epsilon);
    qkv_TC = product(xn_TD, block.qkv->value.t());
    if (block.qkv_bias != nullptr) qkv_TC.add_(block.qkv_bias->value);
  }
  CausalAttention done;
  {
    const Parts p = prepare(block, rope, qkv_TC, sequence, false);
    done = causal_attention(by_sequence(p.q, a, sequence), by_sequence(p.k, a, sequence),
                            by_sequence(p.v, a, sequence));
  }
  const at::Tensor out_TC = done.out_BSHd.view({x_TD.size(0), -1});
  if (tape != nullptr) tape->saved = {qkv_TC, out_TC, done.log_sum_exp};
  at::Tensor x1_TD = add_product(x_TD, out_TC, block.output->value.t());
  if (block.output_bias != nullptr) x1_TD.add_(block.output_bias->value);
  return x1_TD;
}

at::Tensor attention_backward(AttentionBlock& block, const RopeTable& rope,
                              const at::Tensor& gx1_TD, const at::Tensor& x_TD, int64_t sequence,
                              Tape& tape) {
  const model::Attention& a = block.shape;
  const at::Tensor qkv_TC = tape.saved.at(0), out_TC = tape.saved.at(1),
                   log_sum_exp = tape.saved.at(2);
  tape.saved.clear();
  tape.weights_part([&block, gx1_TD, out_TC] {
    accumulate(block.output->gradient, block.output->beta(), gx1_TD, out_TC);
    if (block.output_bias != nullptr)
      accumulate_rows(block.output_bias->gradient, block.output_bias->beta(), gx1_TD);
  });
  Parts g;
  {
    const at::Tensor g_out_TC = product(gx1_TD, block.output->value);
    const Parts p = prepare(block, rope, qkv_TC, sequence, true);
    const auto gradients = causal_attention_backward(
        by_sequence(g_out_TC, a, sequence), by_sequence(p.q, a, sequence),
        by_sequence(p.k, a, sequence), by_sequence(p.v, a, sequence),
        {out_TC.view({-1, sequence, a.num_heads, a.head_dim}), log_sum_exp});
    const int64_t tokens = x_TD.size(0);
    g = {gradients.q_BSHd.view({tokens, -1}), gradients.k_BSHd.view({tokens, -1}),
         gradients.v_BSHd.view({tokens, -1})};
  }
  unprepare(block, rope, g, qkv_TC, sequence);
  at::Tensor gx_TD = project_back(block, g, x_TD, tape);
  rms_norm_backward_(gx_TD, x_TD, block.norm->value, block.epsilon, block.norm->gradient,
                     block.norm->beta(), gx1_TD);
  return gx_TD;
}

}  // namespace piper::nn
