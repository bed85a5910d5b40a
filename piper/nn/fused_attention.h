// Attention by libtorch's fused kernels on accelerators: the flash kernel for bf16 (Dao 2023), and
// the memory-efficient one for fp32 and for values that are narrower than keys (latent attention
// pads its own to the keys' width). Neither forms the S^2 scores. Where libtorch has none that
// computes right, attention is the plain composition.
#pragma once

#include <piper/nn/causal_attention.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::nn {

enum class FusedAttention : uint8_t { kNone, kFlash, kMemoryEfficient };

// What decides which kernel there is. Query heads a key head: the memory-efficient kernel has no
// grouped heads, and gets copies of the keys and values.
struct FusedShape {
  at::ScalarType dtype = at::kFloat;
  int64_t key_width = 0, value_width = 0;  // of a head
  int64_t queries_per_key = 1;
  friend auto operator<=>(const FusedShape&, const FusedShape&) = default;
};

// Tries what libtorch has for the shape on `device` on a small problem, causal and not, forward and
// backward, against the plain composition, and remembers the first that neither throws nor differs.
// Once for a device and a shape; the host waits for the device. Thread-safe.
FusedAttention try_fused_attention(const at::Device& device, const FusedShape& shape);

// What was found for these, whose shapes are causal_attention's; kNone where nothing was tried.
// Thread-safe.
FusedAttention fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// What all trials of the process have found, a line each: "cuda:0: attention, BFloat16, heads of
// 64: flash".
// Thread-safe.
std::vector<std::string> fused_attention_found();

// One block, as attention_block_plain(); `kernel` is not kNone. `scale` is a number.
CausalAttention fused_block(FusedAttention kernel, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal, double scale);
CausalAttentionGradients fused_block_backward(FusedAttention kernel, const at::Tensor& g_out,
                                              const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const CausalAttention& forward,
                                              bool causal, double scale);

}  // namespace piper::nn
