#include <doctest/doctest.h>
#include <piper/nn/causal_attention.h>
#include <piper/nn/tensor_ops.h>
#include <testing/nn/numbers.h>

namespace piper::nn {
namespace {

at::Tensor unit_wave(at::IntArrayRef shape, double phase, at::ScalarType dtype) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return at::sin(at::arange(n, at::kDouble) * 12.9898 + phase).view(shape).to(dtype);
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
        return unit_wave({c.batch, c.length, heads, c.head_dim}, phase, dt).transpose(1, 2);
      };
      const at::Tensor q = make(c.heads, 0), k = make(c.kv_heads, 1), v = make(c.kv_heads, 2),
                       g = make(c.heads, 3);
      const CausalAttention fast = causal_attention(q, k, v),
                            plain = attention_block_plain(q, k, v);
      CHECK(difference(fast.out_BSHd, plain.out_BSHd) < tolerance);
      CHECK(difference(fast.log_sum_exp, plain.log_sum_exp) < tolerance);
      CHECK(fast.out_BSHd.is_contiguous());
      const auto gf = causal_attention_backward(g, q, k, v, fast);
      const auto gp = attention_block_backward_plain(g, q, k, v, plain);
      CHECK(difference(gf.q_BSHd, gp.q_BSHd) < tolerance * 10);
      CHECK(difference(gf.k_BSHd, gp.k_BSHd) < tolerance * 10);
      CHECK(difference(gf.v_BSHd, gp.v_BSHd) < tolerance * 10);
    }
}

// Every rank's steps over all ranks' keys, against all tokens at once.
TEST_CASE("the steps of a ring are causal attention: outputs, log-sum-exps and gradients") {
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-12}, std::pair{at::kBFloat16, 0.03}})
    for (const int64_t ranks : {2, 3, 4})
      for (const bool composes : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(composes);
        const int64_t batch = 2, part = 6, heads = 4, kv_heads = 2, head_dim = 8;
        const auto make = [&, dt = dtype](int64_t n, double phase) {
          return unit_wave({batch, 2 * ranks * part, n, head_dim}, phase, dt).transpose(1, 2);
        };
        const at::Tensor q = make(heads, 0), k = make(kv_heads, 1), v = make(kv_heads, 2),
                         g = make(heads, 3);
        const CausalAttention whole =
            attention_block_plain(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble));
        const CausalAttentionGradients of_whole = attention_block_backward_plain(
            g.to(at::kDouble), q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), whole);
        compute_by_compositions(composes);
        at::Tensor g_k = at::zeros(of_whole.k_BSHd.sizes(), at::kDouble),
                   g_v = at::zeros(of_whole.v_BSHd.sizes(), at::kDouble);
        const auto own = [&](const at::Tensor& x, int64_t rank, int64_t dimension) {
          const ContextShare share{.index = rank, .count = ranks};
          return share.own(x.transpose(1, dimension)).transpose(1, dimension);
        };
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const ContextShare share{.index = rank, .count = ranks};
          const at::Tensor queries = own(q, rank, 2);
          const auto keys_of = [&](const at::Tensor& x, int64_t hop) {
            return RingStep{share, hop}.keys(own(x, (rank - hop + ranks) % ranks, 2), 2);
          };
          CausalAttention all;
          for (int64_t hop = 0; hop < ranks; ++hop) {
            const RingStep step{share, hop};
            all = merge_by_log_sum_exp(
                all, ring_attention(queries, keys_of(k, hop), keys_of(v, hop), step), step);
          }
          CHECK(difference(all.out_BSHd, own(whole.out_BSHd, rank, 1)) < tolerance);
          CHECK(difference(all.log_sum_exp, own(whole.log_sum_exp, rank, 2)) < tolerance);
          const CausalAttention kept{all.out_BSHd.to(dtype), all.log_sum_exp};
          at::Tensor g_q;
          for (int64_t hop = 0; hop < ranks; ++hop) {
            const RingStep step{share, hop};
            const CausalAttentionGradients part_of = ring_attention_backward(
                own(g, rank, 2), queries, keys_of(k, hop), keys_of(v, hop), kept, step);
            g_q = add_queries_gradient(g_q, part_of.q_BSHd, 2 * part, step);
            const ContextShare source{.index = (rank - hop + ranks) % ranks, .count = ranks};
            for (int64_t half = 0; half < (step.reads_early_keys() ? 1 : 2); ++half) {
              const int64_t to = source.parts()[static_cast<size_t>(half)] * part;
              g_k.narrow(1, to, part).add_(part_of.k_BSHd.narrow(1, half * part, part));
              g_v.narrow(1, to, part).add_(part_of.v_BSHd.narrow(1, half * part, part));
            }
          }
          CHECK(difference(g_q, own(of_whole.q_BSHd, rank, 1)) < 10 * tolerance);
        }
        compute_by_compositions(false);
        CHECK(difference(g_k, of_whole.k_BSHd) < 10 * tolerance);
        CHECK(difference(g_v, of_whole.v_BSHd) < 10 * tolerance);
      }
}

}  // namespace
}  // namespace piper::nn
