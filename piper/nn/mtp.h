// A module of multi-token prediction (DeepSeek-V3, section 2.2, eq. 21-23), but for its transformer
// layer, which is made of the segments of any other: what stands before it (the join) and behind it
// (a head).
//
//   h'_i = M [ RMSNorm(Emb(t_{i+k})) ; RMSNorm(h_i) ]    for the first S - k of S positions
//
// h is what the head before it maps to logits, so normalised by that head's norm (the model's final
// norm for k = 1): the order of the two halves and this reading of h are those of the released
// weights. Positions k .. S - 1 give the tokens; the last k positions of a sequence have no module,
// so T = B * (S - k) rows go in and come out.
//
// Nothing is kept for the backward: norms and embeddings are taken again.
#pragma once

#include <piper/nn/head.h>
#include <piper/nn/parameters.h>

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
};

// h: [B * (S - k + 1), D], the previous module's (k = 1: the model's) last hidden state. tokens:
// int64 [B, S]. Returns [B * (S - k), D].
at::Tensor mtp_join_forward(const MtpBlock& block, const at::Tensor& h_TD,
                            const at::Tensor& tokens_BS);
// From the gradient of the result, and g_h (the gradient of h from the head before), to the whole
// gradient of h.
at::Tensor mtp_join_backward(MtpBlock& block, const at::Tensor& gx_TD, const at::Tensor& g_h_TD,
                             const at::Tensor& h_TD, const at::Tensor& tokens_BS, Tape& tape);

// Of targets [B * S] of the next tokens, those of depth k: [B * (S - k)].
at::Tensor mtp_targets(const at::Tensor& targets_T, int64_t sequences, int64_t depth);

}  // namespace piper::nn
