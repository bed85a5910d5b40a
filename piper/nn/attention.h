// The attention segment: x -> x1 = x + W_o attention(rope(norm(W_qkv norm(x)))).
//
// Saved for the backward: qkv [T, (H + 2 Hkv) head_dim] (after the rotation; before the
// normalisation of q and k where the model has one, which the backward then repeats), the
// attention's output [T, H head_dim], its log-sum-exp [B, H, S].
#pragma once

#include <piper/model/model.h>
#include <piper/nn/context_share.h>
#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>
#include <piper/nn/tensor_ops.h>
#include <piper/nn/tensor_share.h>

#include <cstdint>

namespace piper::nn {

// With ranks that share the matrices each has H of the heads (`shape` counts its own), and the keys
// and values that they read. Where there are fewer of these than ranks, each rank holds the
// projections of all, and computes with the rows of one: the gradient of the others is zero there.
struct AttentionBlock {
  model::Attention shape;  // H and Hkv: this rank's
  double epsilon = 1e-6;
  TensorShare share;
  Weight* norm = nullptr;
  Weight* qkv = nullptr;                               // [(H + 2 Hkv) head_dim, D]
  Weight* output = nullptr;                            // [D, H head_dim]
  Weight *qkv_bias = nullptr, *output_bias = nullptr;  // [(H + 2 Hkv) head_dim], [D]; null without
  // Where ranks hold more than they compute with: keys, then values of all heads [2 C, D] and their
  // biases [2 C]; qkv and its bias are then those of q alone. Null else.
  Weight *kv = nullptr, *kv_bias = nullptr;
  int64_t first_kv_row = 0;  // among the C rows of the keys, and of the values
  Weight* q_norm = nullptr;  // null without one; head_dim, or all heads' width (QkNorm::kFull)
  Weight* k_norm = nullptr;
};

// x: [B * sequence, D], of all ranks that share the matrices; the result, and that of the backward,
// is this rank's part. `tape` null: keeps nothing.
at::Tensor attention_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t sequence, Tape* tape);
// Consumes the tape.
at::Tensor attention_backward(AttentionBlock& block, const RopeTable& rope,
                              const at::Tensor& gx1_TD, const at::Tensor& x_TD, int64_t sequence,
                              Tape& tape);

// Ranks that share sequences (`context`) compute attention in two segments with a gather between
// them (schedule/step.h). x: [B * sequence / n, D], the own tokens of all ranks that share the
// matrices; `rope` has their positions, as many as `own_sequence`, a sequence's tokens here.
using Projected = Stage::Projection;
// The tape: with norms of queries and keys, what these read.
Projected projection_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t own_sequence, Tape* tape);
// g: gradients of what the forward returned, consumed. gx1: the residual's gradient.
at::Tensor projection_backward(AttentionBlock& block, const RopeTable& rope, const Projected& g,
                               const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                               int64_t own_sequence, Tape& tape);
// `p.keys_and_values`: of all ranks, by rank; so is its gradient, of which this is a rank's part.
// The tape: the attention's output and its log-sum-exp.
at::Tensor attention_forward(AttentionBlock& block, const ContextShare& context,
                             const at::Tensor& x_TD, const Projected& p, int64_t own_sequence,
                             Tape* tape);
Projected attention_backward(AttentionBlock& block, const ContextShare& context,
                             const at::Tensor& gx1_TD, const Projected& p, int64_t own_sequence,
                             Tape& tape);

// On a ring (schedule/ring_attention.h): steps over one rank's keys and values each, and what
// follows.
using HeadOutputs = Stage::HeadOutputs;
// `p.keys_and_values`: of one rank. Returns what all steps so far have made, of the main type;
// `before` is what they had (nothing in the first).
HeadOutputs ring_step_forward(const AttentionBlock& block, const RingStep& step, const Projected& p,
                              const HeadOutputs& before, int64_t own_sequence);
// What follows the steps, of latent attention too: the projection by `output` and its bias (null
// without one). `outputs`: what the last step has made. `kept`: the same in x's type, for the
// backward.
at::Tensor ring_attention_forward(const TensorShare& share, const Weight& output,
                                  const Weight* bias, const at::Tensor& x_TD,
                                  const HeadOutputs& outputs, HeadOutputs& kept);
// The gradient of the heads' outputs; `kept` stays as it is.
at::Tensor ring_attention_backward(const TensorShare& share, Weight& output, Weight* bias,
                                   const at::Tensor& gx1_TD, const HeadOutputs& kept, Tape& tape);
// The queries' gradient over all steps so far (`g_queries_TC`: of those before, nothing in the
// first), and this rank's part of that of one rank's keys and values.
Projected ring_step_backward(AttentionBlock& block, const RingStep& step,
                             const at::Tensor& g_out_TC, const Projected& p,
                             const HeadOutputs& kept, const at::Tensor& g_queries_TC,
                             int64_t own_sequence);

}  // namespace piper::nn
