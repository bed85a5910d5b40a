// The head segment: x -> loss; and the two ends of the model.
//
// The logits of a whole micro-batch are never held: tokens go through in chunks
// (cost::head_chunk_rows), and with a tape each chunk's gradient is taken while its logits are
// there, so the *forward* does all products of the head: logits, the weight's gradient and the
// gradient of norm(x). Saved for the backward: that gradient, [T, D]; what is left to do there is
// the norm.
#pragma once

#include <piper/nn/host_read.h>
#include <piper/nn/parameters.h>
#include <piper/nn/stage.h>

#include <cstdint>

namespace piper::nn {

struct HeadBlock {
  double epsilon = 1e-6;
  double scale = 1;  // of every token's loss in the gradient: 1 / global_target_tokens
  Weight* norm = nullptr;
  Weight* table = nullptr;  // [V, D]
};

struct HeadLoss {
  Amount sum;  // of the token losses, not divided
  Amount target_tokens;
};

// targets int64, -100 ignored, others in [0, V).
HeadLoss head_forward(HeadBlock& block, const at::Tensor& x_TD, const at::Tensor& targets_T,
                      Tape* tape);
// Consumes the tape.
at::Tensor head_backward(HeadBlock& block, const at::Tensor& x_TD, Tape& tape);
at::Tensor head_logits(const HeadBlock& block, const at::Tensor& x_TD);

at::Tensor embedding_forward(const Weight& table, const at::Tensor& tokens_BS);
void embedding_backward(Weight& table, const at::Tensor& tokens_BS, const at::Tensor& gx_TD);

}  // namespace piper::nn
