#include <doctest/doctest.h>
#include <piper/nn/causal_attention.h>

namespace piper::nn {
namespace {

at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType dtype) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return at::sin(at::arange(n, at::kDouble) * 12.9898 + phase).view(shape).to(dtype);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST_CASE(
    "the kernel equals the plain composition: odd lengths, grouped heads, one head, fp32 and "
    "fp64") {
  struct Case {
    int64_t batch, length, heads, kv_heads, head_dim;
  };
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-13}, std::pair{at::kFloat, 2e-5}})
    for (const Case& c : {Case{2, 33, 4, 2, 8}, Case{1, 1, 2, 1, 16}, Case{3, 7, 3, 3, 5},
                          Case{1, 200, 6, 2, 12}}) {
      CAPTURE(c.length);
      // Heads last in memory, as the projections leave them.
      const auto make = [&, dt = dtype](int64_t heads, double phase) {
        return wave({c.batch, c.length, heads, c.head_dim}, phase, dt).transpose(1, 2);
      };
      const at::Tensor q = make(c.heads, 0), k = make(c.kv_heads, 1), v = make(c.kv_heads, 2),
                       g = make(c.heads, 3);
      const CausalAttention fast = causal_attention(q, k, v),
                            plain = causal_attention_plain(q, k, v);
      CHECK(difference(fast.out_BSHd, plain.out_BSHd) < tolerance);
      CHECK(difference(fast.log_sum_exp, plain.log_sum_exp) < tolerance);
      CHECK(fast.out_BSHd.is_contiguous());
      const auto gf = causal_attention_backward(g, q, k, v, fast);
      const auto gp = causal_attention_backward_plain(g, q, k, v, plain);
      CHECK(difference(gf.q_BSHd, gp.q_BSHd) < tolerance * 10);
      CHECK(difference(gf.k_BSHd, gp.k_BSHd) < tolerance * 10);
      CHECK(difference(gf.v_BSHd, gp.v_BSHd) < tolerance * 10);
    }
}

}  // namespace
}  // namespace piper::nn
