// Causal softmax(scale q k^T) v; scale 0 means 1 / sqrt(head_dim), and its backward. Query head h
// reads key head h / (H / Hkv).
//
// On the CPU libtorch's flash kernel (fp32 and fp64, grouped heads without copies); on other
// devices the fused kernel that fused_attention.h has found, else the plain composition, which
// takes memory of S^2 a head.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/context_share.h>

#include <cstdint>

namespace piper::nn {

struct CausalAttention {
  at::Tensor out_BSHd;     // contiguous
  at::Tensor log_sum_exp;  // [B, H, S] (strides are the kernel's)
};

struct CausalAttentionGradients {
  at::Tensor q_BSHd, k_BSHd, v_BSHd;  // contiguous
};

// q: [B, H, S, d], k, v: [B, Hkv, S, d]; only the last dimension must be contiguous.
CausalAttention causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 double scale = 0);
CausalAttentionGradients causal_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward,
                                                   double scale = 0);

// These are for a rank that shares sequences: its queries are [B, H, S / n, d], and the keys and
// values of all tokens, in order, [B, Hkv, S, d]. A query reads the keys up to its own position:
// each of the rank's two parts of a sequence reads the keys before it in one block, and its own in
// another that is causal. The two are put together by their log-sum-exps (Liu et al. 2023), and the
// backward gives each block those of the whole.
CausalAttention causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const ContextShare& share, double scale = 0);
CausalAttentionGradients causal_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward,
                                                   const ContextShare& share, double scale = 0);

// The same block by block, with the keys and values of one rank at a time. q: all own queries,
// [B, H, S / n, d]; k, v: step.keys() of that rank's. The result is of step.queries(), over these
// keys alone.
CausalAttention ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const RingStep& step, double scale = 0);
// Over the keys of the steps before and of this one, in new storage and of the main type. `made`:
// what ring_attention() returned, consumed; `before`: nothing in the first step.
CausalAttention merge_by_log_sum_exp(const CausalAttention& before, const CausalAttention& made,
                                     const RingStep& step);
// `forward`: of all own queries over all keys. The gradients are this step's part: of
// step.queries(), and of step.keys().
CausalAttentionGradients ring_attention_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const CausalAttention& forward,
                                                 const RingStep& step, double scale = 0);
// The gradient of own queries, [B, S / n, H, d], from that of the steps before (nothing in the
// first) and this one's part, consumed.
at::Tensor add_queries_gradient(const at::Tensor& before, const at::Tensor& part,
                                int64_t own_sequence, const RingStep& step);

// Queries against keys that are all before them, or, causal, those of the same tokens; by the plain
// composition, for any device: the oracle of the tests. scale 0 as above.
CausalAttention attention_block_plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      bool causal = true, double scale = 0);
// `forward`: of all keys that the queries read.
CausalAttentionGradients attention_block_backward_plain(const at::Tensor& g_out,
                                                        const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v,
                                                        const CausalAttention& forward,
                                                        bool causal = true, double scale = 0);

// [B, H, S, d] as [B, S, H, d], contiguous.
at::Tensor heads_last(const at::Tensor& x_BHSd);
// [B, Hkv, S, d] with every key head once for each query head that reads it.
at::Tensor repeat_heads(const at::Tensor& x, int64_t num_heads);

}  // namespace piper::nn
