#include <piper/base/error.h>
#include <piper/nn/context_share.h>

namespace piper::nn {

at::Tensor ContextShare::own(const at::Tensor& x_BS) const {
  if (count == 1) return x_BS;
  PIPER_CHECK(x_BS.size(1) % (2 * count) == 0, "a sequence that cannot be dealt evenly");
  const int64_t tokens = x_BS.size(1) / (2 * count);
  return at::cat(
      {x_BS.narrow(1, parts()[0] * tokens, tokens), x_BS.narrow(1, parts()[1] * tokens, tokens)},
      1);
}

namespace {

// visit(i, j): the i-th and the j-th half of rank `rank`'s tokens are these parts of a sequence.
template <class Visit>
void for_each_part(int64_t count, Visit visit) {
  for (int64_t rank = 0; rank < count; ++rank) {
    const ContextShare share{.index = rank, .count = count};
    for (int64_t half = 0; half < 2; ++half)
      visit(rank, half, share.parts()[static_cast<size_t>(half)]);
  }
}

}  // namespace

at::Tensor RingStep::queries(const at::Tensor& x, int64_t dimension) const {
  if (!has_late_queries()) return x;
  const int64_t half = x.size(dimension) / 2;
  return x.narrow(dimension, half, half);
}

at::Tensor RingStep::keys(const at::Tensor& x, int64_t dimension) const {
  return reads_early_keys() ? x.narrow(dimension, 0, x.size(dimension) / 2) : x;
}

at::Tensor ContextShare::in_order(const at::Tensor& by_rank_TC, int64_t sequences) const {
  if (count == 1) return by_rank_TC.unflatten(0, {sequences, -1});
  const int64_t part = by_rank_TC.size(0) / (2 * count * sequences), width = by_rank_TC.size(1);
  const at::Tensor from = by_rank_TC.view({count, sequences, 2, part, width});
  const at::Tensor to = at::empty({sequences, 2 * count, part, width}, by_rank_TC.options());
  for_each_part(count, [&](int64_t rank, int64_t half, int64_t place) {
    to.select(1, place).copy_(from.select(0, rank).select(1, half));
  });
  return to.view({sequences, 2 * count * part, width});
}

at::Tensor ContextShare::by_rank(const at::Tensor& in_order_BSC) const {
  if (count == 1) return in_order_BSC.flatten(0, 1);
  const int64_t sequences = in_order_BSC.size(0), width = in_order_BSC.size(2);
  const int64_t part = in_order_BSC.size(1) / (2 * count);
  const at::Tensor from = in_order_BSC.unflatten(1, {2 * count, part});
  const at::Tensor to = at::empty({count, sequences, 2, part, width}, in_order_BSC.options());
  for_each_part(count, [&](int64_t rank, int64_t half, int64_t place) {
    to.select(0, rank).select(1, half).copy_(from.select(1, place));
  });
  return to.view({-1, width});
}

}  // namespace piper::nn
