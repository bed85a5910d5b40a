// The dense feed-forward segment: x1 -> x = x1 + s W_down swiglu(W_gate_up norm(x1)), for dense
// layers (s = 1) and for the shared experts of a mixture layer, which may have a gate of their own:
// s = sigmoid(w_s . norm(x1)) (Qwen2-MoE).
//
// Saved for the backward: h = W_gate_up norm(x1), [T, 2F], and s [T, 1] with a gate. The backward
// turns h into its own gradient in place.
#pragma once

#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>
#include <piper/nn/tensor_share.h>

namespace piper::nn {

// With ranks that share the matrices F is a rank's part of the width, x1 holds the tokens of all,
// and results are parts (tensor_share.h). Shared experts are whole on every rank.
struct DenseMlpBlock {
  double epsilon = 1e-6;
  TensorShare share;
  TensorShare counted;  // of shared experts: whose tokens count in the weights' gradients
  Weight* norm = nullptr;
  Weight* gate_up = nullptr;  // [2F, D]: gate rows, then up rows
  Weight* down = nullptr;     // [D, F]
  Weight* gate = nullptr;     // [1, D]: w_s; null: s = 1
};

at::Tensor dense_mlp_forward(DenseMlpBlock& block, const at::Tensor& x1_TD, Tape* tape);
// Consumes the tape.
at::Tensor dense_mlp_backward(DenseMlpBlock& block, const at::Tensor& gx_TD,
                              const at::Tensor& x1_TD, Tape& tape);

}  // namespace piper::nn
