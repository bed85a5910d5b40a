// For tests: tiny models, and one step of the whole model with the ranks of an expert group
// executed one after another in this thread; the exchanges are copies of rows.
#pragma once

#include <piper/model/model.h>
#include <piper/nn/stage.h>
#include <piper/strategy/strategy.h>
#include <testing/nn/reference.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace piper::nn::testing {

// 2 layers; hidden 24, vocabulary 40, 4 heads of 6; 6 experts of ffn 10, 2 chosen. family "mixtral"
// (2 key heads, normalised weights), "qwen3_moe" (2 key heads, norm by head, normalised), "olmoe"
// (4 key heads, norm over all heads), "llama" (dense, 2 key heads).
model::Model tiny_model(const std::string& family);

// Returns a strategy of pp stages with ep ranks each; layers divide evenly.
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

// How far the routing of a step was from another one, over all gates of it: rounding below it
// changes no decision.
struct RoutingMargin {
  // The least difference between the last choice taken and the first one left out, of experts and
  // of groups of them.
  double selection = std::numeric_limits<double>::infinity();
  // The least distance of a weight, relative to the cut, from the ends of the band whose weights
  // count as equal to it.
  double capacity = std::numeric_limits<double>::infinity();
  double least() const { return std::min(selection, capacity); }
};

// What a test keeps where it compares two ways to compute the same: far above what rounding is in
// any precision it uses.
constexpr double kRoutingMargin = 1e-4;

// The stages of one expert group (ep index = index), each with its own batch: forward, backward.
// Gradients add up. `capacity` is that of the stages' strategy, for the margin.
RoutingMargin run_step(const model::Model& model, const std::vector<Stage*>& group,
                       const std::vector<Batch>& batches, const strategy::Capacity& capacity = {});

// By name, cloned.
NamedTensors values(Stage& stage);
NamedTensors gradients(Stage& stage);
// max |a - b| / (1e-30 + largest |b|) over all tensors of b.
double largest_difference(const NamedTensors& a, const NamedTensors& b);

}  // namespace piper::nn::testing
