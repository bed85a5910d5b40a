// Multi-head latent attention (DeepSeek-V2, section 2.1; eq. 9-19 of its appendix C):
//
//   q  = W_qb norm(W_qa xn), or W_q xn without a low-rank factor;   a head of q: [nope | rope]
//   kv = W_kva xn: [latent | key rope];  [key nope | value] a head = W_kvb norm(latent)
//   x1 = x + W_o attention([q nope | rope(q rope)], [key nope | rope(key rope)], value), rope(key
//   rope) the same for all heads
//
// Values narrower than queries are padded with zeros for the attention kernel, which wants one
// width. Saved for the backward: W_qa xn [T, rq], kv [T, rk + rope] (its rope part turned), q [T, H
// (nope + rope)] (turned), W_kvb's output [T, H (nope + value)], the attention's output [T, H
// value], its log-sum-exp [B, H, S]. Keys and padded values are put together again in the backward.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/attention.h>
#include <piper/nn/context_share.h>
#include <piper/nn/parameters.h>
#include <piper/nn/rope.h>
#include <piper/nn/stage.h>
#include <piper/nn/tensor_share.h>

#include <cstdint>

namespace piper::nn {

// With ranks that share the matrices each has H of the heads; the latents are computed by every
// rank, and what makes them is held whole: gradients of these are parts, too.
struct LatentAttentionBlock {
  int64_t num_heads = 0;  // H: this rank's
  model::LatentAttention shape;
  double epsilon = 1e-6;
  double scale = 0;  // of the scores
  TensorShare share;
  Weight* norm = nullptr;       // [D]
  Weight* q_a = nullptr;        // [rq, D]; null without a low-rank factor
  Weight* q_a_norm = nullptr;   // [rq]
  Weight* q_b = nullptr;        // [H (nope + rope), rq], or of D without the factor
  Weight* kv_a = nullptr;       // [rk + rope, D]
  Weight* kv_a_norm = nullptr;  // [rk]
  Weight* kv_b = nullptr;       // [H (nope + value), rk]
  Weight* output = nullptr;     // [D, H value]
};

// x: [B * sequence, D], of all ranks that share the matrices; the result, and that of the backward,
// is this rank's part. `tape` null: keeps nothing.
at::Tensor latent_attention_forward(LatentAttentionBlock& block, const RopeTable& rope,
                                    const at::Tensor& x_TD, int64_t sequence, Tape* tape);
// Consumes the tape.
at::Tensor latent_attention_backward(LatentAttentionBlock& block, const RopeTable& rope,
                                     const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                     int64_t sequence, Tape& tape);

// For ranks that share sequences, as in attention.h: they gather kv, the latents and the rotated
// key that all heads share, and every rank makes keys and values of all tokens from it. The tapes:
// W_qa xn; the attention's output and its log-sum-exp. Keys and values are made again in the
// backward.
Projected latent_projection_forward(LatentAttentionBlock& block, const RopeTable& rope,
                                    const at::Tensor& x_TD, int64_t own_sequence, Tape* tape);
at::Tensor latent_projection_backward(LatentAttentionBlock& block, const RopeTable& rope,
                                      const Projected& g, const at::Tensor& gx1_TD,
                                      const at::Tensor& x_TD, int64_t own_sequence, Tape& tape);
at::Tensor latent_attention_forward(LatentAttentionBlock& block, const ContextShare& context,
                                    const at::Tensor& x_TD, const Projected& p,
                                    int64_t own_sequence, Tape* tape);
Projected latent_attention_backward(LatentAttentionBlock& block, const ContextShare& context,
                                    const at::Tensor& gx1_TD, const Projected& p,
                                    int64_t own_sequence, Tape& tape);
// On a ring: the latents and turned keys of one rank after the other. A step's backward adds to the
// gradients of what makes keys and values of them.
HeadOutputs latent_ring_step_forward(const LatentAttentionBlock& block, const RingStep& step,
                                     const Projected& p, const HeadOutputs& before,
                                     int64_t own_sequence);
Projected latent_ring_step_backward(LatentAttentionBlock& block, const RingStep& step,
                                    const at::Tensor& g_out_TC, const Projected& p,
                                    const HeadOutputs& kept, const at::Tensor& g_queries_TC,
                                    int64_t own_sequence);

}  // namespace piper::nn
