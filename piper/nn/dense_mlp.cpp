#include <piper/nn/dense_mlp.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

namespace piper::nn {
at::Tensor dense_mlp_forward(DenseMlpBlock& block, const at::Tensor& x1_TD, Tape* tape) {
  const at::Tensor h_T2F =
      product(rms_norm(x1_TD, block.norm->value, block.epsilon), block.gate_up->value.t());
  const at::Tensor act_TF = at::empty({h_T2F.size(0), h_T2F.size(1) / 2}, h_T2F.options());
  swiglu_out(act_TF, h_T2F);
  if (tape != nullptr) tape->saved = {h_T2F};
  return add_product(x1_TD, act_TF, block.down->value.t());
}

at::Tensor dense_mlp_backward(DenseMlpBlock& block, const at::Tensor& gx_TD,
                              const at::Tensor& x1_TD, Tape& tape) {
  const at::Tensor h_T2F = tape.saved.at(0);
  tape.saved.clear();
  {
    const at::Tensor g_act_TF = product(gx_TD, block.down->value);
    swiglu_backward_(h_T2F, g_act_TF);  // now g_act is act and h its gradient
    accumulate(block.down->gradient, block.down->beta(), gx_TD, g_act_TF);
  }
  accumulate(block.gate_up->gradient, block.gate_up->beta(), h_T2F,
             rms_norm(x1_TD, block.norm->value, block.epsilon));
  at::Tensor gx1_TD = product(h_T2F, block.gate_up->value);
  rms_norm_backward_(gx1_TD, x1_TD, block.norm->value, block.epsilon, block.norm->gradient,
                     block.norm->beta(), gx_TD);
  return gx1_TD;
}

}  // namespace piper::nn
