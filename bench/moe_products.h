// The matrix products that a mixture layer's forward and backward cannot do without, on buffers
// made beforehand: the limit of any implementation on this machine's libraries.
#pragma once

#include <piper/nn/aten.h>

#include <cstdint>
#include <vector>

namespace piper::nn {

// A way to do the products: weights stored [in, out] or [out, in], by libtorch or as product.h
// chooses.
struct MoeGemms {
  bool transposed = false;
  bool libtorch = false;
};

// The ways that this machine has.
std::vector<MoeGemms> ways_to_multiply();

struct MoeProductsShape {
  int64_t tokens = 0;  // of the router
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t num_experts = 0;                                            // of the router
  std::vector<int64_t> rows;                                          // of each expert here
  at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);  // of every operand
};

// On the calling thread, or put into its stream. Operands are random.
class MoeProducts {
 public:
  explicit MoeProducts(const MoeProductsShape& shape);
  // 6 products an expert with rows, and 3 of the router.
  void run(const MoeGemms& how);
  double flops() const;

 private:
  using Multiply = void (*)(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
  void expert_products(Multiply multiply, int64_t expert, int64_t start, int64_t n,
                       bool transposed);

  MoeProductsShape shape_;
  at::Tensor x_, gx_, logits_, rows_, h_, act_, out_;
  at::Tensor up_, down_, router_, up_t_, down_t_;  // [E, 2F, D], [E, D, F], [E, D]; transposed
  at::Tensor g_up_, g_down_, g_router_, g_up_t_, g_down_t_;
};

}  // namespace piper::nn
