#include <piper/nn/causal_attention.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/tensor_ops.h>

#include <array>
#include <cmath>

namespace piper::nn {
namespace {

// Sums the query heads that share a key head.
at::Tensor sum_heads(const at::Tensor& g, int64_t num_kv_heads) {
  return g.unflatten(1, {num_kv_heads, -1}).sum(2);
}

double scale_of(const at::Tensor& q, double scale) {
  return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, bool causal, double scale) {
  const at::Tensor all = at::matmul(q, k.transpose(2, 3)) * scale_of(q, scale);
  if (!causal) return all;
  const at::Tensor future = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
  return all.masked_fill(future, -INFINITY);
}

// Queries against keys that are all before them, or, causal, those of the same tokens.
CausalAttention block(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                      double scale) {
  if (const FusedAttention kernel = fused_attention(q, k, v); kernel != FusedAttention::kNone)
    return fused_block(kernel, q, k, v, causal, scale_of(q, scale));
  if (!has_kernels(q)) return attention_block_plain(q, k, v, causal, scale);
  const auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, 0.0, causal, /*attn_mask=*/{}, scale_of(q, scale));
  return {heads_last(out), log_sum_exp};  // the kernel writes heads last: no copy
}

// `forward`: of all keys that the queries read.
CausalAttentionGradients block_backward(const at::Tensor& g_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const CausalAttention& forward, bool causal, double scale) {
  if (const FusedAttention kernel = fused_attention(q, k, v); kernel != FusedAttention::kNone)
    return fused_block_backward(kernel, g_out, q, k, v, forward, causal, scale_of(q, scale));
  if (!has_kernels(q))
    return attention_block_backward_plain(g_out, q, k, v, forward, causal, scale);
  const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      g_out, q, k, v, forward.out_BSHd.transpose(1, 2), forward.log_sum_exp, 0.0, causal,
      /*attn_mask=*/{}, scale_of(q, scale));
  return {heads_last(gq), heads_last(gk), heads_last(gv)};
}

// Puts together, in place, attention to one part of a sequence and attention to the keys before it.
CausalAttention put_together(const CausalAttention& own, const CausalAttention& before) {
  const at::Tensor sum = at::logaddexp(own.log_sum_exp, before.log_sum_exp);
  const auto weight_ = [&](const CausalAttention& part) {
    at::Tensor out_BSHd = part.out_BSHd;
    return out_BSHd.mul_((part.log_sum_exp - sum).exp().transpose(1, 2).unsqueeze(-1));
  };
  return {weight_(own).add_(weight_(before)), sum};
}

}  // namespace

at::Tensor heads_last(const at::Tensor& x_BHSd) { return x_BHSd.transpose(1, 2).contiguous(); }

at::Tensor repeat_heads(const at::Tensor& x, int64_t num_heads) {
  return x.size(1) == num_heads ? x : x.repeat_interleave(num_heads / x.size(1), 1);
}

CausalAttention causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 double scale) {
  return block(q, k, v, true, scale);
}

CausalAttentionGradients causal_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward, double scale) {
  return block_backward(g_out, q, k, v, forward, true, scale);
}

CausalAttention causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const ContextShare& share, double scale) {
  const int64_t tokens = q.size(2) / 2;
  std::array<CausalAttention, 2> of;
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t before = share.parts()[static_cast<size_t>(half)] * tokens;
    const at::Tensor queries = q.narrow(2, half * tokens, tokens);
    CausalAttention& made = of[static_cast<size_t>(half)];
    made = block(queries, k.narrow(2, before, tokens), v.narrow(2, before, tokens), true, scale);
    if (before > 0)
      made = put_together(
          made, block(queries, k.narrow(2, 0, before), v.narrow(2, 0, before), false, scale));
  }
  return {at::cat({of[0].out_BSHd, of[1].out_BSHd}, 1),
          at::cat({of[0].log_sum_exp, of[1].log_sum_exp}, 2)};
}

CausalAttentionGradients causal_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward,
                                                   const ContextShare& share, double scale) {
  const int64_t tokens = q.size(2) / 2;
  const auto heads_last_like = [](const at::Tensor& x) {
    return at::zeros({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options());
  };
  CausalAttentionGradients g{heads_last_like(q), heads_last_like(k), heads_last_like(v)};
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = half * tokens, before = share.parts()[static_cast<size_t>(half)] * tokens;
    const CausalAttention of{forward.out_BSHd.narrow(1, first, tokens),
                             forward.log_sum_exp.narrow(2, first, tokens)};
    const auto add = [&](int64_t key, int64_t keys, bool causal) {
      if (keys == 0) return;
      const CausalAttentionGradients part =
          block_backward(g_out.narrow(2, first, tokens), q.narrow(2, first, tokens),
                         k.narrow(2, key, keys), v.narrow(2, key, keys), of, causal, scale);
      g.q_BSHd.narrow(1, first, tokens).add_(part.q_BSHd);
      g.k_BSHd.narrow(1, key, keys).add_(part.k_BSHd);
      g.v_BSHd.narrow(1, key, keys).add_(part.v_BSHd);
    };
    add(before, tokens, true);
    add(0, before, false);
  }
  return g;
}

CausalAttention ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const RingStep& step, double scale) {
  return block(step.queries(q, 2), k, v, step.is_own(), scale);
}

CausalAttention merge_by_log_sum_exp(const CausalAttention& before, const CausalAttention& made,
                                     const RingStep& step) {
  const CausalAttention here{made.out_BSHd.to(main_type(made.out_BSHd.scalar_type())),
                             made.log_sum_exp};
  if (!before.out_BSHd.defined())
    return {here.out_BSHd.contiguous(), here.log_sum_exp.contiguous()};
  const bool has_all = !step.has_late_queries();
  const CausalAttention old{step.queries(before.out_BSHd, 1), step.queries(before.log_sum_exp, 2)};
  const at::Tensor together = at::logaddexp(old.log_sum_exp, here.log_sum_exp);
  const auto weight = [&](const CausalAttention& of) {
    return (of.log_sum_exp - together).exp_().transpose(1, 2).unsqueeze(-1);
  };
  const auto add_ = [&](at::Tensor to, const CausalAttention& it, const CausalAttention& other) {
    to.mul_(weight(it)).addcmul_(other.out_BSHd, weight(other));
  };
  if (has_all) {
    const CausalAttention sum{here.out_BSHd.contiguous(), together};
    add_(sum.out_BSHd, here, old);
    return sum;
  }
  const CausalAttention sum{before.out_BSHd.clone(), before.log_sum_exp.clone()};
  add_(step.queries(sum.out_BSHd, 1), old, here);
  step.queries(sum.log_sum_exp, 2).copy_(together);
  return sum;
}

CausalAttentionGradients ring_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const CausalAttention& forward,
                                                 const RingStep& step, double scale) {
  return block_backward(step.queries(g_out, 2), step.queries(q, 2), k, v,
                        {step.queries(forward.out_BSHd, 1), step.queries(forward.log_sum_exp, 2)},
                        step.is_own(), scale);
}

at::Tensor add_queries_gradient(const at::Tensor& before, const at::Tensor& part,
                                int64_t own_sequence, const RingStep& step) {
  if (!step.has_late_queries()) {
    at::Tensor sum = part;
    return before.defined() ? sum.add_(before) : sum;
  }
  const at::Tensor sum =
      before.defined()
          ? before.clone()
          : at::zeros({part.size(0), own_sequence, part.size(2), part.size(3)}, part.options());
  step.queries(sum, 1).add_(part);
  return sum;
}

CausalAttention attention_block_plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      bool causal, double scale) {
  const at::Tensor s = scores(q, repeat_heads(k, q.size(1)), causal, scale);
  const at::Tensor log_sum_exp = at::logsumexp(s.to(main_type(q.scalar_type())), -1);
  const at::Tensor p = (s - log_sum_exp.unsqueeze(-1)).exp().to(q.scalar_type());
  return {heads_last(at::matmul(p, repeat_heads(v, q.size(1)))), log_sum_exp};
}

CausalAttentionGradients attention_block_backward_plain(const at::Tensor& g_out,
                                                        const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v,
                                                        const CausalAttention& forward, bool causal,
                                                        double scale) {
  const int64_t kv_heads = k.size(1);
  const at::Tensor keys = repeat_heads(k, q.size(1)), values = repeat_heads(v, q.size(1));
  const at::Tensor p = (scores(q, keys, causal, scale) - forward.log_sum_exp.unsqueeze(-1))
                           .exp()
                           .to(q.scalar_type());
  const at::Tensor g_p = at::matmul(g_out, values.transpose(2, 3));
  // Each row's sum of p g_p over all keys, also those of other blocks.
  const at::Tensor sums = (g_out * forward.out_BSHd.transpose(1, 2)).sum(-1, true);
  const at::Tensor g_s = p * (g_p - sums) * scale_of(q, scale);
  return {heads_last(at::matmul(g_s, keys)),
          heads_last(sum_heads(at::matmul(g_s.transpose(2, 3), q), kv_heads)),
          heads_last(sum_heads(at::matmul(p.transpose(2, 3), g_out), kv_heads))};
}

}  // namespace piper::nn
