// The part that one of the ranks that share a layer's matrices has (schedule/step.h says who reads
// what).
//
// A block computes with this rank's part of its matrices on the tokens of all ranks, T. What it
// writes is a part of a sum over the ranks. The residual, biases of the output and whatever else
// belongs to a token and not to a head stand in the part of the token's owner alone: rank `index`
// owns tokens index T / count to (index + 1) T / count. With count 1 everything is its own.
//
// Without sequence parallelism what the ranks hold whole computes on all tokens on every rank. Its
// results are whole, and of its weights' gradients each rank takes those of its own tokens, so that
// they are parts of a sum likewise.
#pragma once

#include <piper/nn/aten.h>

#include <cstdint>

namespace piper::nn {

struct TensorShare {
  int64_t index = 0, count = 1;

  // The rows of this rank's own tokens among those of all; a view. Requires count to divide them
  // (PIPER_CHECK).
  at::Tensor own(const at::Tensor& x) const;
  // This rank's part of x + a b, in new storage.
  at::Tensor add_product(const at::Tensor& x_TD, const at::Tensor& a, const at::Tensor& b) const;
  // This rank's part of the backward of x + f(norm(x)): g_TD, its part of the gradient of norm(x),
  // becomes that of x. The weight's gradient is a part, too.
  void norm_backward_(const at::Tensor& g_TD, const at::Tensor& x_TD, const at::Tensor& weight,
                      double epsilon, const at::Tensor& weight_gradient, double beta,
                      const at::Tensor& residual_gradient_TD) const;
  // The same where every rank computes all of it: the gradient of x is whole, the weight's that of
  // own tokens. Without a residual its gradient is undefined.
  void whole_norm_backward_(const at::Tensor& g_TD, const at::Tensor& x_TD,
                            const at::Tensor& weight, double epsilon,
                            const at::Tensor& weight_gradient, double beta,
                            const at::Tensor& residual_gradient_TD) const;
};

}  // namespace piper::nn
