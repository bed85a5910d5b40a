// The dense feed-forward segment: x1 -> x = x1 + W_down swiglu(W_gate_up norm(x1)).
//
// Saved for the backward: h = W_gate_up norm(x1), [T, 2F]. The backward turns h into its own gradient in place.
#pragma once

#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>

namespace piper::nn {

struct DenseMlpBlock {
  double epsilon = 1e-6;
  Weight* norm = nullptr;
  Weight* gate_up = nullptr;  // [2F, D]: gate rows, then up rows
  Weight* down = nullptr;     // [D, F]
};

at::Tensor dense_mlp_forward(DenseMlpBlock& block, const at::Tensor& x1_TD, Tape* tape);
// Consumes the tape.
at::Tensor dense_mlp_backward(DenseMlpBlock& block, const at::Tensor& gx_TD,
                              const at::Tensor& x1_TD, Tape& tape);

}  // namespace piper::nn
