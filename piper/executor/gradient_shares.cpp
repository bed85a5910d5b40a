#include <piper/base/error.h>
#include <piper/executor/gradient_shares.h>

namespace piper::executor {

void GradientShares::add(Key key, int64_t begin, int64_t count, const at::TensorOptions& options) {
  const bool is_new =
      shares_.try_emplace(key, Share{.sum = at::zeros({count}, options), .begin = begin}).second;
  PIPER_CHECK(is_new, "a buffer of gradients that is divided twice");
}

void GradientShares::start_step() {
  for (auto& [key, share] : shares_) share.is_zero = true;
}

void GradientShares::keep(Key key, const at::Tensor& buffer) {
  Share& share = shares_.at(key);
  const at::Tensor own = buffer.narrow(0, share.begin, share.sum.numel());
  if (share.is_zero)
    share.sum.copy_(own);
  else
    share.sum.add_(own);
  share.is_zero = false;
}

int64_t GradientShares::bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, share] : shares_) bytes += static_cast<int64_t>(share.sum.nbytes());
  return bytes;
}

at::Tensor GradientShares::sums(Key key, int64_t begin, int64_t end) const {
  const Share& share = shares_.at(key);
  PIPER_CHECK(begin >= share.begin && end <= share.begin + share.sum.numel(),
              "gradients of another rank's share");
  return share.sum.narrow(0, begin - share.begin, end - begin);
}

}  // namespace piper::executor
