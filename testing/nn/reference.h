// The plain whole model in textbook at:: calls under autograd: the oracle that the segments are
// tested against. Slow, unsharded, S^2 memory, and short enough to be compared with the papers line
// by line.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/aten.h>
#include <piper/strategy/capacity.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::nn {

// By Hugging Face name, as NamedPiece has them.
using NamedTensors = std::map<std::string, at::Tensor>;

struct ReferenceResult {
  at::Tensor logits;          // [T, V]
  at::Tensor token_loss_sum;  // scalar
  // scalar: scaled by the coefficient, summed over sequences and layers, not divided
  at::Tensor auxiliary_loss;
  at::Tensor z_loss;    // the same
  int64_t dropped = 0;  // copies of tokens beyond the experts' capacity
  // The same of each module of multi-token prediction; auxiliary and z-loss together.
  std::vector<at::Tensor> mtp_loss_sums, mtp_auxiliary_losses;
};

// tokens: int64 [B, S]; targets: int64 [B * S], -100 ignored. Differentiable in `weights`.
ReferenceResult reference_forward(const model::Model& model, const NamedTensors& weights,
                                  const at::Tensor& tokens_BS, const at::Tensor& targets_T,
                                  const strategy::Capacity& capacity = {});

// Gradients of token_loss_sum / global_target_tokens + (auxiliary_loss + z_loss) /
// global_sequences, and of the modules' losses alike, by mtp_weight over their number.
NamedTensors reference_gradients(const model::Model& model, const NamedTensors& weights,
                                 const at::Tensor& tokens_BS, const at::Tensor& targets_T,
                                 int64_t global_target_tokens, int64_t global_sequences,
                                 const strategy::Capacity& capacity = {}, double mtp_weight = 0,
                                 const std::vector<int64_t>& mtp_target_tokens = {});

}  // namespace piper::nn
