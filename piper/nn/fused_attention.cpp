#include <fmt/format.h>
#include <piper/nn/device_trials.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

namespace piper::nn {
namespace {

// The memory-efficient kernel's log-sum-exps are padded: its backward wants them so.
constexpr int64_t kPaddedRows = 32;

CausalAttention flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                      double scale) {
  const auto made = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale);
  return {heads_last(std::get<0>(made)), std::get<1>(made).narrow(2, 0, q.size(2)).contiguous()};
}

CausalAttentionGradients flash_backward(const at::Tensor& g_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const CausalAttention& forward, bool causal, double scale) {
  // Without dropout it reads no random state, and without packed sequences none of their ends.
  const at::Tensor none = at::empty({2}, q.options().dtype(at::kUInt64));
  const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_backward(
      g_out, q, k, v, forward.out_BSHd.transpose(1, 2), forward.log_sum_exp.contiguous(), {}, {},
      q.size(2), k.size(2), 0.0, causal, none, none.narrow(0, 0, 1), scale);
  return {heads_last(gq), heads_last(gk), heads_last(gv)};
}

CausalAttention memory_efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 bool causal, double scale) {
  const auto made = at::_scaled_dot_product_efficient_attention(
      q, repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1)), /*attn_bias=*/{},
      /*compute_log_sumexp=*/true, 0.0, causal, scale);
  return {heads_last(std::get<0>(made)), std::get<1>(made).narrow(2, 0, q.size(2)).contiguous()};
}

CausalAttentionGradients memory_efficient_backward(const at::Tensor& g_out, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const CausalAttention& forward, bool causal,
                                                   double scale) {
  const int64_t padding = (kPaddedRows - q.size(2) % kPaddedRows) % kPaddedRows;
  const at::Tensor padded = at::constant_pad_nd(forward.log_sum_exp, {0, padding},
                                                std::numeric_limits<double>::infinity());
  const at::Tensor none = at::empty({}, q.options().dtype(at::kLong));
  const auto made = at::_scaled_dot_product_efficient_attention_backward(
      g_out, q, repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1)), /*attn_bias=*/{},
      forward.out_BSHd.transpose(1, 2), padded.contiguous(), none, none, 0.0,
      {true, true, true, false}, causal, scale);
  const auto of_key_heads = [&](const at::Tensor& g) {
    return g.size(1) == k.size(1) ? g : g.unflatten(1, {k.size(1), -1}).sum(2);
  };
  return {heads_last(std::get<0>(made)), heads_last(of_key_heads(std::get<1>(made))),
          heads_last(of_key_heads(std::get<2>(made)))};
}

// --- which there are ---

using KernelTrials = DeviceTrials<FusedShape, FusedAttention>;
KernelTrials& kernel_trials() {
  static KernelTrials all;
  return all;
}

// Returns the largest error as a part of the largest element.
double error(const at::Tensor& made, const at::Tensor& expected) {
  const at::Tensor a = made.cpu().to(at::kDouble), b = expected.cpu().to(at::kDouble);
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// It is ten times what rounding leaves: a wrong kernel is wrong by parts of one.
double tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 0.1 : 1e-3; }

struct Trial {
  int64_t queries, keys;
  bool causal;
};
// Less than a block of a kernel, several, and the queries of a rank that shares sequences.
constexpr Trial kTrials[] = {{40, 40, true}, {40, 40, false}, {200, 200, true}, {72, 200, false}};

bool computes_right(FusedAttention kernel, const at::Device& device, const FusedShape& shape,
                    const Trial& trial) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(shape.dtype);
  constexpr int64_t kKeyHeads = 2;
  const int64_t heads = kKeyHeads * shape.queries_per_key;
  const auto tensor = [&](int64_t tokens, int64_t num_heads, int64_t width, double phase) {
    return trial_operand({2, tokens, num_heads, width}, phase, options).transpose(1, 2);
  };
  const at::Tensor q = tensor(trial.queries, heads, shape.key_width, 0),
                   k = tensor(trial.keys, kKeyHeads, shape.key_width, 1),
                   v = tensor(trial.keys, kKeyHeads, shape.value_width, 2),
                   g = tensor(trial.queries, heads, shape.value_width, 3);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.key_width));
  const CausalAttention expected = attention_block_plain(q, k, v, trial.causal, scale);
  const CausalAttention made = fused_block(kernel, q, k, v, trial.causal, scale);
  const CausalAttentionGradients expected_g =
      attention_block_backward_plain(g, q, k, v, expected, trial.causal, scale);
  const CausalAttentionGradients made_g =
      fused_block_backward(kernel, g, q, k, v, made, trial.causal, scale);
  const std::pair<const at::Tensor&, const at::Tensor&> results[] = {
      {made.out_BSHd, expected.out_BSHd},
      {made.log_sum_exp, expected.log_sum_exp},
      {made_g.q_BSHd, expected_g.q_BSHd},
      {made_g.k_BSHd, expected_g.k_BSHd},
      {made_g.v_BSHd, expected_g.v_BSHd}};
  return std::ranges::all_of(results, [&](const auto& of) {
    return error(of.first, of.second) <= tolerance(shape.dtype);  // no number is not
  });
}

bool works(FusedAttention kernel, const at::Device& device, const FusedShape& shape) {
  return succeeds(device, [&] {
    return std::ranges::all_of(
        kTrials, [&](const Trial& trial) { return computes_right(kernel, device, shape, trial); });
  });
}

}  // namespace

FusedAttention try_fused_attention(const at::Device& device, const FusedShape& shape) {
  if (device.is_cpu() || shape.dtype == at::kDouble) return FusedAttention::kNone;
  return kernel_trials().once(device, shape, [&] {
    const bool flash_may = shape.dtype == at::kBFloat16 && shape.key_width == shape.value_width;
    for (const FusedAttention kernel : {FusedAttention::kFlash, FusedAttention::kMemoryEfficient})
      if ((kernel != FusedAttention::kFlash || flash_may) && works(kernel, device, shape))
        return kernel;
    return FusedAttention::kNone;
  });
}

std::vector<std::string> fused_attention_found() {
  constexpr const char* kNames[] = {"plain", "flash", "memory-efficient"};
  return kernel_trials().lines([&](const FusedShape& shape, FusedAttention kernel) {
    return fmt::format(
        "attention, {}, heads of {}{}{}: {}", at::toString(shape.dtype), shape.key_width,
        shape.value_width != shape.key_width ? fmt::format(" and {}", shape.value_width) : "",
        shape.queries_per_key > 1 ? fmt::format(", {} for a key", shape.queries_per_key) : "",
        kNames[static_cast<size_t>(kernel)]);
  });
}

FusedAttention fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (q.is_cpu()) return FusedAttention::kNone;
  return kernel_trials().found(q.device(), {.dtype = q.scalar_type(),
                                            .key_width = k.size(3),
                                            .value_width = v.size(3),
                                            .queries_per_key = q.size(1) / k.size(1)});
}

CausalAttention fused_block(FusedAttention kernel, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal, double scale) {
  return kernel == FusedAttention::kFlash ? flash(q, k, v, causal, scale)
                                          : memory_efficient(q, k, v, causal, scale);
}

CausalAttentionGradients fused_block_backward(FusedAttention kernel, const at::Tensor& g_out,
                                              const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const CausalAttention& forward,
                                              bool causal, double scale) {
  return kernel == FusedAttention::kFlash
             ? flash_backward(g_out, q, k, v, forward, causal, scale)
             : memory_efficient_backward(g_out, q, k, v, forward, causal, scale);
}

}  // namespace piper::nn
