#include <piper/nn/aten.h>
#include <piper/nn/causal_attention.h>
#include <tests/stand_in/fused_attention.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <limits>
#include <optional>
#include <tuple>

namespace piper::testing::stand_in {
namespace {

std::atomic<int64_t> num_calls{0};
std::atomic<int> wrong_result{-1};

// Not a number, if it is the one.
at::Tensor spoilt(int result, const at::Tensor& value) {
  return wrong_result == result ? value * std::numeric_limits<double>::quiet_NaN() : value;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& bias, bool compute_log_sum_exp, double dropout, bool causal,
    std::optional<double> scale) {
  TORCH_CHECK(!bias && compute_log_sum_exp && dropout == 0 && scale, "not what Piper asks for");
  TORCH_CHECK(q.size(1) == k.size(1), "it has no grouped heads");
  ++num_calls;
  const nn::CausalAttention made = nn::attention_block_plain(q, k, v, causal, *scale);
  const at::Tensor out = spoilt(0, made.out_BSHd).transpose(1, 2);
  const at::Tensor none = at::zeros({}, at::kLong);
  const int64_t padding = (32 - q.size(2) % 32) % 32;
  return {out, at::constant_pad_nd(spoilt(1, made.log_sum_exp), {0, padding}, 0), none,
          none.clone()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& g_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor&, const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor&,
    const at::Tensor&, double dropout, std::array<bool, 4> wanted, bool causal,
    std::optional<double> scale) {
  TORCH_CHECK(wanted == (std::array{true, true, true, false}) && dropout == 0 && scale);
  TORCH_CHECK(log_sum_exp.size(2) % 32 == 0 && log_sum_exp.is_contiguous(), "it wants them padded");
  const nn::CausalAttentionGradients g = nn::attention_block_backward_plain(
      g_out, q, k, v, {out.transpose(1, 2), log_sum_exp.narrow(2, 0, q.size(2))}, causal, *scale);
  return {spoilt(2, g.q_BSHd).transpose(1, 2), spoilt(3, g.k_BSHd).transpose(1, 2),
          spoilt(4, g.v_BSHd).transpose(1, 2), at::zeros({}, q.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_efficient_attention", &forward);
  library.impl("_scaled_dot_product_efficient_attention_backward", &backward);
}

int64_t num_fused_attentions() { return num_calls; }
void spoil_fused_attention(int result) { wrong_result = result; }

}  // namespace piper::testing::stand_in
