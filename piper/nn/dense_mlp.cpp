#include <piper/nn/dense_mlp.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

namespace piper::nn {

at::Tensor dense_mlp_forward(DenseMlpBlock& block, const at::Tensor& x1_TD, Tape* tape) {
  at::Tensor h_T2F, share_T1;
  {
    const at::Tensor xn_TD = rms_norm(x1_TD, block.norm->value, block.epsilon);
    h_T2F = product(xn_TD, block.gate_up->value.t());
    if (block.gate != nullptr) share_T1 = product(xn_TD, block.gate->value.t()).sigmoid_();
  }
  const at::Tensor act_TF = at::empty({h_T2F.size(0), h_T2F.size(1) / 2}, h_T2F.options());
  swiglu_out(act_TF, h_T2F);
  if (share_T1.defined()) act_TF.mul_(share_T1);
  if (tape != nullptr) tape->saved = {h_T2F, share_T1};
  return block.share.add_product(x1_TD, act_TF, block.down->value.t());
}

at::Tensor dense_mlp_backward(DenseMlpBlock& block, const at::Tensor& gx_TD,
                              const at::Tensor& x1_TD, Tape& tape) {
  const at::Tensor h_T2F = tape.saved.at(0), share_T1 = tape.saved.at(1);
  tape.saved.clear();
  at::Tensor g_share_T1;  // of the gate's logit
  {
    const at::Tensor g_act_TF = product(gx_TD, block.down->value);
    at::Tensor g_shared_TF;
    if (share_T1.defined()) {
      g_shared_TF = g_act_TF.clone();
      g_act_TF.mul_(share_T1);
    }
    swiglu_backward_(h_T2F, g_act_TF);  // now g_act is act and h its gradient
    if (share_T1.defined()) {
      g_share_T1 = g_shared_TF.mul_(g_act_TF).sum(1, true) * share_T1 * (1 - share_T1);
      g_act_TF.mul_(share_T1);
    }
    tape.weights_part([&block, gx_TD, g_act_TF] {
      accumulate(block.down->gradient, block.down->beta(), block.counted.own(gx_TD),
                 block.counted.own(g_act_TF));
    });
  }
  tape.weights_part([&block, h_T2F, x1_TD, g_share_T1] {
    const TensorShare& counted = block.counted;
    const at::Tensor xn_TD = rms_norm(counted.own(x1_TD), block.norm->value, block.epsilon);
    accumulate(block.gate_up->gradient, block.gate_up->beta(), counted.own(h_T2F), xn_TD);
    if (g_share_T1.defined())
      accumulate(block.gate->gradient, block.gate->beta(), counted.own(g_share_T1), xn_TD);
  });
  at::Tensor gx1_TD = product(h_T2F, block.gate_up->value);
  if (share_T1.defined()) product_out(gx1_TD, g_share_T1, block.gate->value, 1);
  if (block.counted.count > 1)
    block.counted.whole_norm_backward_(gx1_TD, x1_TD, block.norm->value, block.epsilon,
                                       block.norm->gradient, block.norm->beta(), gx_TD);
  else
    block.share.norm_backward_(gx1_TD, x1_TD, block.norm->value, block.epsilon,
                               block.norm->gradient, block.norm->beta(), gx_TD);
  return gx1_TD;
}

}  // namespace piper::nn
