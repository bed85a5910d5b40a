// The curves of `piper profile --full` (Piper section IV-A): dense and expert products, attention
// by head size, norms, routing, permutation and copies, over shapes of their own and over those of
// one model. For people and for the report; prices are made of measure_compute.h's.
#pragma once

#include <piper/model/model.h>
#include <piper/profile/measure_points.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <vector>

namespace piper::profile {

// What of a model fits the micro-benchmarks.
struct ModelShapes {
  model::Model model;
  int64_t sequence = 256;
  int64_t ep = 1;              // ranks that share a layer's experts
  double operand_bytes = 1e9;  // that one point may hold on a rank
};

// The largest number of ranks, at most `num_ranks`, among which the model's experts divide evenly;
// 1 for a dense model.
int64_t experts_among(const model::Model& model, int64_t num_ranks);

std::vector<BenchCurve> shape_curves(strategy::Precision precision, const BenchDevice& device,
                                     const ModelShapes& shapes);

// Experts one by one and as one product, alone ("expert_gemm", "expert_gemm_grouped"): what
// grouped_choice_of() compares.
std::vector<BenchCurve> expert_curves(strategy::Precision precision, const BenchDevice& device,
                                      double operand_bytes);

// Attention and experts of the model over the sequences of a micro-batch (1, 2, 4 .. 64), named
// "join_attention" and "join_experts": what cluster::join_micro_batches() joins. A rank's experts
// get the rows that `ep` ranks with such a micro-batch send them, balanced. Where the weights of
// all of a rank's experts exceed `operand_bytes`, as many are measured as fit: the rate is that of
// rows an expert. Without experts the dense net stands in their place. Throws InvalidInput when one
// expert alone does not fit.
std::vector<BenchCurve> join_curves(strategy::Precision precision, const BenchDevice& device,
                                    const ModelShapes& shapes);

}  // namespace piper::profile
