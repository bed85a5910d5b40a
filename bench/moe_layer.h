// One mixture layer of a training step (gate, experts, merge; forward and backward; norm and
// residual included) against the matrix products that it cannot do without, on buffers made
// beforehand: the limit of any implementation on this machine's libraries. Both sides run in turn.
// On the CPU times are of the thread's processor, so that what else the machine runs does not
// count; on a device they are of the wall clock, until the device is done.
#pragma once

#include <bench/moe_products.h>
#include <piper/model/model.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace piper::nn {

struct MoeLayerShape {
  int64_t tokens = 2048;
  int64_t hidden = 512;
  int64_t ffn = 1024;
  int64_t num_experts = 8;
  int64_t top_k = 2;
  int64_t num_heads = 1;  // of the stand-in for attention, which tp deals to its ranks
  at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);  // of one rank's layer
};

struct MoeLayerTimes {
  double layer_seconds = 0;  // medians
  double gemm_seconds = 0;   // of the fastest way
  double ratio = 0;          // median over the rounds of layer / GEMMs (each round's fastest way)
  double flops = 0;          // of the products, forward and backward
};

// A model of one layer that has a mixture and next to nothing else: a small attention and
// vocabulary.
model::Model mixture_layer_model(const MoeLayerShape& shape);

// On the calling thread alone (at::set_num_threads(1) is the caller's). Weights and inputs
// are random; the routing is what the random router gives.
class MoeLayerBench {
 public:
  explicit MoeLayerBench(const MoeLayerShape& shape);
  ~MoeLayerBench();

  // Seconds of one forward and backward.
  double run_layer();
  // Seconds of the same products alone: 6 an expert and 3 of the router.
  double run_gemms(const MoeGemms& how);
  double flops() const;

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

// Interleaved rounds, after one round to warm up.
MoeLayerTimes bench_moe_layer(const MoeLayerShape& shape, int64_t rounds);

}  // namespace piper::nn
