#include <piper/base/error.h>
#include <piper/nn/mtp.h>
#include <piper/nn/product.h>
#include <piper/nn/tensor_ops.h>

namespace piper::nn {
namespace {

// Columns of the two halves of [.., 2D].
at::Tensor embedding_half(const at::Tensor& joined) {
  const int64_t hidden = joined.size(-1) / 2;
  return joined.narrow(-1, 0, hidden);
}
at::Tensor state_half(const at::Tensor& joined) {
  const int64_t hidden = joined.size(-1) / 2;
  return joined.narrow(-1, hidden, hidden);
}

// The positions of h, or of its gradient, that the module has: a view [B, S - k, D].
at::Tensor kept(const at::Tensor& h_TD, int64_t sequences) {
  const at::Tensor h_BSD = h_TD.view({sequences, -1, h_TD.size(1)});
  return h_BSD.narrow(1, 0, h_BSD.size(1) - 1);
}

// Of every position the token k behind it.
at::Tensor later_tokens(const at::Tensor& tokens_BS, int64_t depth) {
  return tokens_BS.narrow(1, depth, tokens_BS.size(1) - depth).reshape({-1});
}

at::Tensor previous_state(const MtpBlock& block, const at::Tensor& h_TD, int64_t sequences) {
  const at::Tensor h_BSD = kept(h_TD, sequences);
  at::Tensor state_BSD = at::empty(h_BSD.sizes(), h_TD.options());
  rms_norm_out(state_BSD, h_BSD, block.previous_norm->value, block.epsilon);
  return state_BSD;
}

at::Tensor join(const MtpBlock& block, const at::Tensor& h_TD, const at::Tensor& tokens_T,
                int64_t sequences) {
  const int64_t hidden = h_TD.size(1);
  at::Tensor joined_T2D = at::empty({tokens_T.size(0), 2 * hidden}, h_TD.options());
  {
    const at::Tensor e_TD = block.embedding->value.index_select(0, tokens_T);
    rms_norm_out(embedding_half(joined_T2D), e_TD, block.embedding_norm->value, block.epsilon);
  }
  const at::Tensor state_TD = previous_state(block, h_TD, sequences).view({-1, hidden});
  rms_norm_out(state_half(joined_T2D), state_TD, block.state_norm->value, block.epsilon);
  return joined_T2D;
}

void embedding_half_backward(MtpBlock& block, const at::Tensor& g_joined_T2D,
                             const at::Tensor& tokens_T) {
  {
    const at::Tensor e_TD = block.embedding->value.index_select(0, tokens_T);
    rms_norm_backward_(embedding_half(g_joined_T2D), e_TD, block.embedding_norm->value,
                       block.epsilon, block.embedding_norm->gradient, block.embedding_norm->beta());
  }
  embedding_backward(*block.embedding, tokens_T, embedding_half(g_joined_T2D).contiguous());
}

void add_projection_gradient(MtpBlock& block, const at::Tensor& gx_TD,
                             const at::Tensor& joined_T2D) {
  accumulate(block.projection->gradient, block.projection->beta(), gx_TD, joined_T2D);
}

// In place: the state's half becomes the gradient of h, g_h added.
void state_half_backward(MtpBlock& block, const at::Tensor& g_joined_T2D, const at::Tensor& h_TD,
                         const at::Tensor& g_h_TD, int64_t sequences) {
  const at::Tensor h_BSD = kept(h_TD, sequences);
  const at::Tensor g_BSD = state_half(g_joined_T2D.view({sequences, -1, g_joined_T2D.size(1)}));
  rms_norm_backward_(g_BSD, previous_state(block, h_TD, sequences), block.state_norm->value,
                     block.epsilon, block.state_norm->gradient, block.state_norm->beta());
  rms_norm_backward_(g_BSD, h_BSD, block.previous_norm->value, block.epsilon,
                     block.previous_norm->gradient, block.previous_norm->beta(),
                     kept(g_h_TD, sequences));
}

}  // namespace

at::Tensor mtp_join_forward(const MtpBlock& block, const at::Tensor& h_TD,
                            const at::Tensor& tokens_BS) {
  const at::Tensor tokens_T = later_tokens(tokens_BS, block.depth);
  const at::Tensor joined_T2D = join(block, h_TD, tokens_T, tokens_BS.size(0));
  return product(joined_T2D, block.projection->value.t());
}

at::Tensor mtp_join_backward(MtpBlock& block, const at::Tensor& gx_TD, const at::Tensor& g_h_TD,
                             const at::Tensor& h_TD, const at::Tensor& tokens_BS, Tape& tape) {
  const int64_t sequences = tokens_BS.size(0);
  const at::Tensor tokens_T = later_tokens(tokens_BS, block.depth);
  at::Tensor joined_T2D;
  if (tape.defers_weights) {
    joined_T2D = at::empty({gx_TD.size(0), 2 * gx_TD.size(1)}, gx_TD.options());
    tape.weights_part([&block, gx_TD, h_TD, tokens_T, sequences] {
      add_projection_gradient(block, gx_TD, join(block, h_TD, tokens_T, sequences));
    });
  } else {
    joined_T2D = join(block, h_TD, tokens_T, sequences);
    add_projection_gradient(block, gx_TD, joined_T2D);
  }
  product_out(joined_T2D, gx_TD, block.projection->value);  // now its gradient
  embedding_half_backward(block, joined_T2D, tokens_T);
  state_half_backward(block, joined_T2D, h_TD, g_h_TD, sequences);
  at::Tensor g_TD = g_h_TD.clone();
  kept(g_TD, sequences).copy_(state_half(joined_T2D.view({sequences, -1, joined_T2D.size(1)})));
  return g_TD;
}

at::Tensor mtp_targets(const at::Tensor& targets_T, int64_t sequences, int64_t depth) {
  return later_tokens(targets_T.view({sequences, -1}), depth);
}

}  // namespace piper::nn
