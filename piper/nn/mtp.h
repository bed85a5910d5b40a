// A module of multi-token prediction (DeepSeek-V3, section 2.2, eq. 21-23), but for its transformer
// layer, which is made of the segments of any other: what stands before it (the join) and behind it
// (a head).
//
//   h'_i = M [ RMSNorm(Emb(t_{i+k})) ; RMSNorm(h_i) ]
//
// h is what the head before it maps to logits, so normalised by that head's norm (the model's final
// norm for k = 1): the order of the two halves and this reading of h are those of the released
// weights.
//
// The last k of a sequence's S positions have no token i + k. They go along as padding, with token
// 0 in its place, so that sequences divide among ranks as those of other layers do: attention is
// causal, so nobody reads them; they have no target, and the gate counts none of their choices
// (GateBlock::padding). Their gradients are zero.
//
// Where ranks hold the same tokens each (`counted`), weights' gradients are those of own ones.
//
// Nothing is kept for the backward: norms and embeddings are taken again.
#pragma once

#include <piper/nn/head.h>
#include <piper/nn/parameters.h>
#include <piper/nn/tensor_share.h>

#include <cstdint>

namespace piper::nn {

struct MtpBlock {
  int64_t depth = 1;  // k
  double epsilon = 1e-6;
  Weight* embedding = nullptr;       // [V, D], the model's
  Weight* embedding_norm = nullptr;  // enorm
  Weight* state_norm = nullptr;      // hnorm
  Weight* previous_norm = nullptr;   // of the head before
  Weight* projection = nullptr;      // [D, 2D]
  HeadBlock head;                    // its own norm, the model's table
  TensorShare counted;
};

// Returns for every position the token `depth` places later, 0 where there is none: int64 [B, S].
at::Tensor later_tokens(const at::Tensor& tokens_BS, int64_t depth);

// h: [T, D], the previous module's (k = 1: the model's) last hidden state. tokens: int64 [T], those
// of later_tokens(). Returns [T, D].
at::Tensor mtp_join_forward(const MtpBlock& block, const at::Tensor& h_TD,
                            const at::Tensor& tokens_T);
// From the gradient of the result, and g_h (the gradient of h from the head before), to the whole
// gradient of h.
at::Tensor mtp_join_backward(MtpBlock& block, const at::Tensor& gx_TD, const at::Tensor& g_h_TD,
                             const at::Tensor& h_TD, const at::Tensor& tokens_T, Tape& tape);

// Returns the targets of depth k, given those of the next tokens, both [B * S]; -100 where there is
// none.
at::Tensor mtp_targets(const at::Tensor& targets_T, int64_t sequences, int64_t depth);

}  // namespace piper::nn
