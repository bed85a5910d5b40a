#include <piper/nn/causal_attention.h>
#include <piper/nn/tensor_ops.h>

#include <cmath>

namespace piper::nn {
namespace {

at::Tensor heads_last(const at::Tensor& x_BHSd) { return x_BHSd.transpose(1, 2).contiguous(); }

at::Tensor repeat_heads(const at::Tensor& x, int64_t num_heads) {
  return x.repeat_interleave(num_heads / x.size(1), 1);
}

// Sums the query heads that share a key head.
at::Tensor sum_heads(const at::Tensor& g, int64_t num_kv_heads) {
  return g.unflatten(1, {num_kv_heads, -1}).sum(2);
}

double scale_of(const at::Tensor& q, double scale) {
  return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, double scale) {
  const int64_t length = q.size(2);
  const at::Tensor future = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  return (at::matmul(q, k.transpose(2, 3)) * scale_of(q, scale)).masked_fill(future, -INFINITY);
}

}  // namespace

CausalAttention causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 double scale) {
  if (!has_kernels(q)) return causal_attention_plain(q, k, v, scale);
  const auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, 0.0, /*is_causal=*/true, /*attn_mask=*/{}, scale_of(q, scale));
  return {heads_last(out), log_sum_exp};  // the kernel writes heads last: no copy
}

CausalAttentionGradients causal_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward, double scale) {
  if (!has_kernels(q)) return causal_attention_backward_plain(g_out, q, k, v, forward, scale);
  const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      g_out, q, k, v, forward.out_BSHd.transpose(1, 2), forward.log_sum_exp, 0.0,
      /*is_causal=*/true, /*attn_mask=*/{}, scale_of(q, scale));
  return {heads_last(gq), heads_last(gk), heads_last(gv)};
}

CausalAttention causal_attention_plain(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, double scale) {
  const at::Tensor s = scores(q, repeat_heads(k, q.size(1)), scale);
  const at::Tensor log_sum_exp = at::logsumexp(s, -1);
  const at::Tensor p = (s - log_sum_exp.unsqueeze(-1)).exp();
  return {heads_last(at::matmul(p, repeat_heads(v, q.size(1)))), log_sum_exp};
}

CausalAttentionGradients causal_attention_backward_plain(const at::Tensor& g_out,
                                                         const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const CausalAttention& forward,
                                                         double scale) {
  const int64_t kv_heads = k.size(1);
  const at::Tensor keys = repeat_heads(k, q.size(1)), values = repeat_heads(v, q.size(1));
  const at::Tensor p = (scores(q, keys, scale) - forward.log_sum_exp.unsqueeze(-1)).exp();
  const at::Tensor g_p = at::matmul(g_out, values.transpose(2, 3));
  const at::Tensor g_s = p * (g_p - (p * g_p).sum(-1, true)) * scale_of(q, scale);
  return {heads_last(at::matmul(g_s, keys)),
          heads_last(sum_heads(at::matmul(g_s.transpose(2, 3), q), kv_heads)),
          heads_last(sum_heads(at::matmul(p.transpose(2, 3), g_out), kv_heads))};
}

}  // namespace piper::nn
