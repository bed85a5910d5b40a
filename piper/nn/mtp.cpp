#include <piper/base/error.h>
#include <piper/nn/mtp.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

namespace piper::nn {
namespace {

// Columns of the two halves of [T, 2D].
at::Tensor embedding_half(const at::Tensor& joined_T2D) {
  return joined_T2D.narrow(1, 0, joined_T2D.size(1) / 2);
}
at::Tensor state_half(const at::Tensor& joined_T2D) {
  return joined_T2D.narrow(1, joined_T2D.size(1) / 2, joined_T2D.size(1) / 2);
}

// Moves every value of [B, S] `depth` places to the left, with `fill` where there is none.
at::Tensor moved_left(const at::Tensor& values_BS, int64_t depth, int64_t fill) {
  const int64_t kept = values_BS.size(1) - depth;
  at::Tensor moved_BS = at::full_like(values_BS, fill);
  moved_BS.narrow(1, 0, kept).copy_(values_BS.narrow(1, depth, kept));
  return moved_BS;
}

at::Tensor empty_join(const at::Tensor& h_TD) {
  return at::empty({h_TD.size(0), 2 * h_TD.size(1)}, h_TD.options());
}

void join_out(const at::Tensor& joined_T2D, const MtpBlock& block, const at::Tensor& h_TD,
              const at::Tensor& tokens_T) {
  {
    const at::Tensor e_TD = block.embedding->value.index_select(0, tokens_T);
    rms_norm_out(embedding_half(joined_T2D), e_TD, block.embedding_norm->value, block.epsilon);
  }
  const at::Tensor state_TD = rms_norm(h_TD, block.previous_norm->value, block.epsilon);
  rms_norm_out(state_half(joined_T2D), state_TD, block.state_norm->value, block.epsilon);
}

at::Tensor join(const MtpBlock& block, const at::Tensor& h_TD, const at::Tensor& tokens_T) {
  const at::Tensor joined_T2D = empty_join(h_TD);
  join_out(joined_T2D, block, h_TD, tokens_T);
  return joined_T2D;
}

void embedding_half_backward(MtpBlock& block, const at::Tensor& g_TD, const at::Tensor& tokens_T) {
  {
    const at::Tensor e_TD = block.embedding->value.index_select(0, tokens_T);
    rms_norm_backward_(g_TD, e_TD, block.embedding_norm->value, block.epsilon,
                       block.embedding_norm->gradient, block.embedding_norm->beta());
  }
  embedding_backward(*block.embedding, tokens_T, g_TD.contiguous());
}

void add_projection_gradient(MtpBlock& block, const at::Tensor& gx_TD,
                             const at::Tensor& joined_T2D) {
  accumulate(block.projection->gradient, block.projection->beta(), gx_TD, joined_T2D);
}

}  // namespace

at::Tensor later_tokens(const at::Tensor& tokens_BS, int64_t depth) {
  return moved_left(tokens_BS, depth, 0);
}

at::Tensor mtp_targets(const at::Tensor& targets_T, int64_t sequences, int64_t depth) {
  return moved_left(targets_T.view({sequences, -1}), depth, -100).reshape({-1});
}

at::Tensor mtp_join_forward(const MtpBlock& block, const at::Tensor& h_TD,
                            const at::Tensor& tokens_T) {
  return product(join(block, h_TD, tokens_T), block.projection->value.t());
}

at::Tensor mtp_join_backward(MtpBlock& block, const at::Tensor& gx_TD, const at::Tensor& g_h_TD,
                             const at::Tensor& h_TD, const at::Tensor& tokens_T, Tape& tape) {
  const TensorShare& counted = block.counted;
  const at::Tensor own_tokens_T = counted.own(tokens_T);
  const at::Tensor joined_T2D = empty_join(h_TD);
  if (tape.defers_weights) {
    tape.weights_part([&block, gx_TD, h_TD, own_tokens_T] {
      add_projection_gradient(block, block.counted.own(gx_TD),
                              join(block, block.counted.own(h_TD), own_tokens_T));
    });
  } else {
    const at::Tensor own_T2D = counted.own(joined_T2D);
    join_out(own_T2D, block, counted.own(h_TD), own_tokens_T);
    add_projection_gradient(block, counted.own(gx_TD), own_T2D);
  }
  product_out(joined_T2D, gx_TD, block.projection->value);  // now its gradient
  embedding_half_backward(block, counted.own(embedding_half(joined_T2D)), own_tokens_T);
  const at::Tensor g_TD = state_half(joined_T2D);
  {
    const at::Tensor state_TD = rms_norm(h_TD, block.previous_norm->value, block.epsilon);
    counted.whole_norm_backward_(g_TD, state_TD, block.state_norm->value, block.epsilon,
                                 block.state_norm->gradient, block.state_norm->beta(), {});
  }
  counted.whole_norm_backward_(g_TD, h_TD, block.previous_norm->value, block.epsilon,
                               block.previous_norm->gradient, block.previous_norm->beta(), g_h_TD);
  return g_TD.contiguous();
}

}  // namespace piper::nn
