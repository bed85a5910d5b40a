#include <doctest/doctest.h>
#include <piper/executor/weight_shares.h>
#include <piper/nn/aten.h>

namespace piper::executor {

TEST_CASE("a rank keeps its own weights of a buffer, and finds what of a parameter they are") {
  const WeightShares::Key key{3, strategy::Axis::kData};
  WeightShares shares;
  CHECK(shares.empty());
  shares.add(key, 4, 3, at::kFloat);
  CHECK(shares.contains(key));
  CHECK((shares.keys() == std::vector<WeightShares::Key>{key}));
  const at::Tensor buffer = at::arange(10, at::kFloat);
  shares.keep(key, buffer);
  at::Tensor other = at::zeros({10}, at::kFloat);
  shares.fill(key, other);
  CHECK(at::equal(other, at::tensor({0, 0, 0, 0, 4, 5, 6, 0, 0, 0}, at::kFloat)));
  // The parameter begins before the share, lies inside it, ends after it, or has nothing of it.
  CHECK(at::equal(shares.own(key, 2, 6).weights, at::tensor({4, 5}, at::kFloat)));
  CHECK(shares.own(key, 2, 6).first == 2);
  CHECK(at::equal(shares.own(key, 5, 6).weights, at::tensor({5}, at::kFloat)));
  CHECK(shares.own(key, 5, 6).first == 0);
  CHECK(at::equal(shares.own(key, 6, 9).weights, at::tensor({6}, at::kFloat)));
  CHECK(!shares.own(key, 0, 4).weights.defined());
  CHECK(!shares.own(key, 7, 9).weights.defined());
  // They are the share's own memory: what updates them is what is gathered next.
  at::Tensor updated = shares.own(key, 4, 7).weights;
  updated.add_(10);
  shares.fill(key, other);
  CHECK(other[4].item<float>() == 14);
}

}  // namespace piper::executor
