// The permutation of a mixture layer. The counts are needed on the host (they bind the graph's byte counts), so the
// order is found there: a counting sort, which is stable, so rows of one expert stay in token order.
#include <piper/base/error.h>
#include <piper/nn/tensor_ops.h>

#include <limits>

namespace piper::nn {
namespace {

template <class T>
void fill(const at::Tensor& probabilities, const at::Tensor& expert, int64_t sequence,
          bool normalised, double scaling, DispatchOrder& order) {
  const int64_t tokens = expert.size(0), k = expert.size(1), num_experts = probabilities.size(1);
  const T* p = probabilities.data_ptr<T>();
  const int32_t* chosen = expert.data_ptr<int32_t>();
  order.counts.assign(static_cast<size_t>(num_experts), 0);
  order.sequence_counts.assign(static_cast<size_t>(tokens / sequence * num_experts), 0);
  for (int64_t i = 0; i < tokens * k; ++i) {
    ++order.counts[static_cast<size_t>(chosen[i])];
    ++order.sequence_counts[static_cast<size_t>(i / k / sequence * num_experts + chosen[i])];
  }
  std::vector<int64_t> next(static_cast<size_t>(num_experts), 0);
  for (size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + order.counts[e - 1];
  auto* token = order.token.data_ptr<int32_t>();
  auto* position = order.position.data_ptr<int32_t>();
  T* weight = order.weights.data_ptr<T>();
  for (int64_t t = 0; t < tokens; ++t) {
    T sum = normalised ? T(0) : T(1);
    for (int64_t j = 0; normalised && j < k; ++j) sum += p[t * num_experts + chosen[t * k + j]];
    for (int64_t j = 0; j < k; ++j) {
      const int32_t e = chosen[t * k + j];
      const int64_t row = next[static_cast<size_t>(e)]++;
      token[row] = static_cast<int32_t>(t);
      position[t * k + j] = static_cast<int32_t>(row);
      weight[row] = static_cast<T>(scaling) * (p[t * num_experts + e] / sum);
    }
  }
}

}  // namespace

void limit_groups_(at::Tensor scores, int64_t num_groups, int64_t top_groups, bool two_best) {
  const at::Tensor grouped = scores.view({scores.size(0), num_groups, -1});
  const at::Tensor rank = two_best && grouped.size(2) > 1
                              ? std::get<0>(at::topk(grouped, 2, -1)).sum(-1)
                              : std::get<0>(grouped.max(-1));
  const at::Tensor best = std::get<1>(at::topk(rank, top_groups, -1));
  const at::Tensor outside = at::ones_like(rank, at::kBool).scatter_(1, best, false);
  grouped.masked_fill_(outside.unsqueeze(-1), -std::numeric_limits<double>::infinity());
}

DispatchOrder order_rows(const at::Tensor& probabilities, const at::Tensor& expert,
                         int64_t sequence, bool normalised, double scaling) {
  PIPER_CHECK(sequence > 0 && expert.size(0) % sequence == 0, "tokens are not whole sequences");
  const at::Tensor p = probabilities.cpu(),
                   chosen = expert.cpu();  // no copy when they are there already
  DispatchOrder order;
  order.token = at::empty({expert.numel()}, at::kInt);
  order.position = at::empty(expert.sizes(), at::kInt);
  order.weights = at::empty({expert.numel()}, p.options());
  if (p.scalar_type() == at::kFloat) {
    fill<float>(p, chosen, sequence, normalised, scaling, order);
  } else {
    fill<double>(p, chosen, sequence, normalised, scaling, order);
  }
  order.token = order.token.to(expert.device());
  order.position = order.position.to(expert.device());
  order.weights = order.weights.to(expert.device());
  return order;
}

}  // namespace piper::nn
