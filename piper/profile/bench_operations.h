// What is timed: one operation each, on operands of its own, made once and then called repeatedly.
// They are the kernels that training runs on the device (nn/).
#pragma once

#include <piper/nn/product_choice.h>
#include <piper/profile/bench_device.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace piper::profile {

using Prepare = std::function<std::function<void()>()>;

struct OperandsOn {
  BenchDevice device;
  at::ScalarType dtype = at::kFloat;
};

// y[m, n] = x[m, k] w[n, k]^T. Weights are rotated through memory larger than a core's private
// caches, as a layer's weights are in training.
Prepare gemm(int64_t m, int64_t n, int64_t k, const OperandsOn& on);

// A product of a class by one library, fp32, weights rotated as in gemm().
Prepare product_of(const nn::ProductClass& shape, nn::ProductLibrary library,
                   const BenchDevice& device);

struct AttentionShape {
  int64_t batch = 1, sequence = 0, heads = 0, head_dim = 0, kv_heads = 0;
  // FLOPs of causal attention, half of the s^2 scores: QK^T and PV; the backward counts twice that,
  // as MFU does (kernels that compute QK^T again do more).
  double flops(bool backward) const;
};
Prepare attention(const AttentionShape& shape, bool backward, const OperandsOn& on);

// The forward of routed experts with SwiGLU on rows that lie sorted by expert.
struct ExpertsShape {
  int64_t hidden = 0, ffn = 0;
  std::vector<int64_t> rows;                 // of each expert
  double flops() const;                      // three products
  double bytes(at::ScalarType dtype) const;  // of weights, rows and what is kept while they run
};
Prepare experts_one_by_one(const ExpertsShape& shape, const OperandsOn& on);
// By libtorch's grouped product: fp32 and bf16.
Prepare experts_grouped(const ExpertsShape& shape, const OperandsOn& on);
// `total` rows over the experts in proportion to 1 / (index + 1)^skew; skew 0 = evenly. They sum to
// `total`.
std::vector<int64_t> skewed_rows(int64_t num_experts, int64_t total, double skew);

// The attention part of a layer: query, key and value in one product, attention, output projection;
// forward.
struct AttentionPart {
  AttentionShape attention;
  int64_t hidden = 0;
  double flops() const;
};
Prepare attention_part(const AttentionPart& part, const OperandsOn& on);

Prepare rms_norm(int64_t tokens, int64_t hidden, bool backward, const OperandsOn& on);
// Softmax of the router's logits and the k best of every token.
Prepare route(int64_t tokens, int64_t num_experts, int64_t top_k, const OperandsOn& on);
// rows[i] = tokens[order[i]] in a random order.
Prepare permute(int64_t rows, int64_t hidden, const OperandsOn& on);
Prepare multiply_elements(int64_t num_elements, const OperandsOn& on);
Prepare silu(int64_t num_elements, const OperandsOn& on);
// AdamW: 28 bytes a parameter (g, m, v, w read; m, v, w written), in fp32; of bf16 the masters',
// and 2 more, for the weights that they are rounded into.
Prepare adamw(int64_t num_parameters, const OperandsOn& on);
double adamw_bytes(at::ScalarType dtype);  // of a parameter
// What of a share of experts has changed most, one part in 50 (nn/expert_residuals.h).
Prepare find_residuals(int64_t num_elements, const OperandsOn& on);
Prepare copy_bytes(int64_t bytes, const BenchDevice& from, const BenchDevice& to);

}  // namespace piper::profile
