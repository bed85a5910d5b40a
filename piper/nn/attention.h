// The attention segment: x -> x1 = x + W_o attention(rope(norm(W_qkv norm(x)))).
//
// Saved for the backward: qkv [T, (H + 2 Hkv) head_dim] (after the rotation; before the
// normalisation of q and k where the model has one, which the backward then repeats), the
// attention's output [T, H head_dim], its log-sum-exp [B, H, S].
#pragma once

#include <piper/model/model.h>
#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>
#include <piper/nn/tensor_ops.h>

#include <cstdint>

namespace piper::nn {

struct AttentionBlock {
  model::Attention shape;
  double epsilon = 1e-6;
  Weight* norm = nullptr;
  Weight* qkv = nullptr;                               // [(H + 2 Hkv) head_dim, D]
  Weight* output = nullptr;                            // [D, H head_dim]
  Weight *qkv_bias = nullptr, *output_bias = nullptr;  // [(H + 2 Hkv) head_dim], [D]; null without
  Weight* q_norm = nullptr;  // null without one; head_dim, or all heads' width (QkNorm::kFull)
  Weight* k_norm = nullptr;
};

// x: [B * sequence, D]. `tape` null: keeps nothing.
at::Tensor attention_forward(AttentionBlock& block, const RopeTable& rope, const at::Tensor& x_TD,
                             int64_t sequence, Tape* tape);
// Consumes the tape.
at::Tensor attention_backward(AttentionBlock& block, const RopeTable& rope,
                              const at::Tensor& gx1_TD, const at::Tensor& x_TD, int64_t sequence,
                              Tape& tape);

}  // namespace piper::nn
