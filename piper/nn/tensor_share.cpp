#include <piper/base/error.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>
#include <piper/nn/tensor_share.h>

namespace piper::nn {

at::Tensor TensorShare::own(const at::Tensor& x) const {
  const int64_t tokens = x.size(0);
  PIPER_CHECK(tokens % count == 0, "tokens that cannot be dealt evenly");
  return x.narrow(0, tokens / count * index, tokens / count);
}

at::Tensor TensorShare::add_product(const at::Tensor& x_TD, const at::Tensor& a,
                                    const at::Tensor& b) const {
  if (count == 1) return nn::add_product(x_TD, a, b);
  at::Tensor part_TD = product(a, b);
  own(part_TD).add_(own(x_TD));
  return part_TD;
}

void TensorShare::norm_backward_(const at::Tensor& g_TD, const at::Tensor& x_TD,
                                 const at::Tensor& weight, double epsilon,
                                 const at::Tensor& weight_gradient, double beta,
                                 const at::Tensor& residual_gradient_TD) const {
  rms_norm_backward_(g_TD, x_TD, weight, epsilon, weight_gradient, beta,
                     count == 1 ? residual_gradient_TD : at::Tensor());
  if (count > 1) own(g_TD).add_(own(residual_gradient_TD));
}

void TensorShare::whole_norm_backward_(const at::Tensor& g_TD, const at::Tensor& x_TD,
                                       const at::Tensor& weight, double epsilon,
                                       const at::Tensor& weight_gradient, double beta,
                                       const at::Tensor& residual_gradient_TD) const {
  const int64_t each = g_TD.size(0) / count;
  for (int64_t i = 0; i < count; ++i) {
    const TensorShare share{.index = i, .count = count};
    if (each > 0 || i == index)
      rms_norm_backward_(
          share.own(g_TD), share.own(x_TD), weight, epsilon,
          i == index ? weight_gradient : at::Tensor(), beta,
          residual_gradient_TD.defined() ? share.own(residual_gradient_TD) : at::Tensor());
  }
}

}  // namespace piper::nn
