#include <piper/base/error.h>
#include <piper/executor/weight_shares.h>

#include <algorithm>

namespace piper::executor {

void WeightShares::add(Key key, int64_t begin, int64_t count, const at::TensorOptions& options) {
  const bool is_new =
      shares_.try_emplace(key, Share{.weights = at::empty({count}, options), .begin = begin})
          .second;
  PIPER_CHECK(is_new, "a buffer of weights that is divided twice");
}

void WeightShares::keep(Key key, const at::Tensor& buffer) {
  Share& share = shares_.at(key);
  share.weights.copy_(buffer.narrow(0, share.begin, share.weights.numel()));
}

void WeightShares::fill(Key key, const at::Tensor& buffer) const {
  const Share& share = shares_.at(key);
  buffer.narrow(0, share.begin, share.weights.numel()).copy_(share.weights);
}

std::vector<WeightShares::Key> WeightShares::keys() const {
  std::vector<Key> keys;
  for (const auto& [key, share] : shares_) keys.push_back(key);
  return keys;
}

WeightShares::Part WeightShares::own(Key key, int64_t begin, int64_t end) const {
  const Share& share = shares_.at(key);
  const int64_t first = std::max(begin, share.begin),
                last = std::min(end, share.begin + share.weights.numel());
  if (first >= last) return {};
  return {share.weights.narrow(0, first - share.begin, last - first), first - begin};
}

}  // namespace piper::executor
