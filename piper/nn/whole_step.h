// For tests: tiny models, and one step of the whole model with the ranks of an expert group played one after another in
// this thread; the exchanges are copies of rows.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/reference.h>
#include <piper/nn/stage.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace piper::nn::testing {

// 2 layers; hidden 24, vocabulary 40, 4 heads of 6; 6 experts of ffn 10, 2 chosen. family "mixtral" (2 key heads,
// normalised weights), "qwen3_moe" (2 key heads, norm by head, normalised), "olmoe" (4 key heads, norm over all heads),
// "llama" (dense, 2 key heads).
model::Model tiny_model(const std::string& family);

// Of pp stages with ep ranks each; layers divide evenly.
strategy::Strategy tiny_strategy(const model::Model& model, int64_t pp, int64_t ep,
                                 int64_t sequence);

struct Batch {
  at::Tensor tokens_BS, targets_T;
};
// Random tokens; targets are the next tokens, the last of every sequence and some others -100.
Batch random_batch(const model::Model& model, int64_t sequences, int64_t sequence, uint64_t seed);
int64_t num_targets(const Batch& batch,
                    int64_t depth = 0);  // of a module of multi-token prediction
std::vector<int64_t> num_mtp_targets(const model::Model& model, const Batch& batch);  // by module

// The stages of one expert group (ep index = index), each with its own batch: forward, backward. Gradients add up.
void run_step(const model::Model& model, const std::vector<Stage*>& group,
              const std::vector<Batch>& batches);

// By name, cloned.
NamedTensors values(Stage& stage);
NamedTensors gradients(Stage& stage);
// max |a - b| / (1e-30 + largest |b|) over all tensors of b.
double largest_difference(const NamedTensors& a, const NamedTensors& b);

}  // namespace piper::nn::testing
