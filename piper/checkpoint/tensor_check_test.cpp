#include <doctest/doctest.h>
#include <piper/checkpoint/tensor_check.h>

#include <cmath>
#include <limits>
#include <set>

namespace piper::checkpoint {
namespace {

TEST_CASE("one value that is not finite is found in every floating type, wherever it stands") {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const double bad : {double{INFINITY}, -double{INFINITY}, double{NAN}})
      for (int64_t at = 0; at < 37; at += 4) {
        const at::Tensor x = at::ones({37}, type);
        CHECK(all_finite(x));
        x.narrow(0, at, 1).fill_(bad);
        CHECK_FALSE(all_finite(x));
      }
  CHECK(all_finite(at::full({3}, std::numeric_limits<float>::max(), at::kFloat)));
  CHECK(all_finite(at::full({3}, std::numeric_limits<float>::denorm_min(), at::kFloat)));
  CHECK(all_finite(at::full({3}, -1, at::kLong)));
  CHECK(all_finite(at::empty({0}, at::kFloat)));
  const at::Tensor x = at::ones({4, 4});
  x.narrow(0, 3, 1).narrow(1, 0, 1).fill_(NAN);
  CHECK(all_finite(x.t().narrow(1, 0, 3)));
  CHECK_FALSE(all_finite(x.t()));
  CHECK(first_not_finite({{"a", at::ones({2})}, {"b", x}, {"c", x}}) == "b");
  CHECK(first_not_finite({{"a", at::ones({2})}}).empty());
}

TEST_CASE("every single flipped bit of a tensor has a hash of its own") {
  for (const int64_t size : {1, 7, 8, 33}) {
    const at::Tensor x = at::arange(1, size + 1, at::kFloat);
    std::set<uint64_t> seen = {tensor_hash(x)};
    auto* words = static_cast<uint32_t*>(x.mutable_data_ptr());
    for (int64_t i = 0; i < size; ++i)
      for (int bit = 0; bit < 32; ++bit) {
        words[i] ^= uint32_t{1} << bit;
        seen.insert(tensor_hash(x));
        words[i] ^= uint32_t{1} << bit;
      }
    CHECK(std::ssize(seen) == 32 * size + 1);
  }
  // Stored in checkpoints: it may not change.
  CHECK(tensor_hash_text(at::arange(1, 10, at::kInt)) == "10495c5ecc6681a3");
}

}  // namespace
}  // namespace piper::checkpoint
