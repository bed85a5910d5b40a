#include <doctest/doctest.h>
#include <piper/nn/init.h>

namespace piper::nn {
namespace {

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  // kat_vectors of Random123.
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("weights are normal with the given range") {
  at::Tensor w = at::empty({501, 399}, at::kDouble);
  fill_normal(w, 42, "w", 0.02);
  CHECK(w.mean().item<double>() == doctest::Approx(0).epsilon(0.0002));
  CHECK(w.std().item<double>() == doctest::Approx(0.02).epsilon(0.01));
  CHECK((w.pow(4).mean() / w.pow(2).mean().pow(2)).item<double>() ==
        doctest::Approx(3).epsilon(0.03));  // kurtosis
}

TEST_CASE("an element depends on seed, name and index only") {
  at::Tensor a = at::empty({7, 5}, at::kDouble), b = at::empty({7, 5}, at::kDouble);
  fill_normal(a, 1, "x", 1);
  at::Tensor wide = at::zeros({7, 10}, at::kDouble);
  fill_normal(wide.narrow(1, 3, 5), 1, "x", 1);  // into a view
  CHECK(at::equal(wide.narrow(1, 3, 5), a));
  CHECK(wide.narrow(1, 0, 3).count_nonzero().item<int64_t>() == 0);
  at::Tensor narrow = at::empty({7, 5}, at::kFloat);
  fill_normal(narrow, 1, "x", 1);
  CHECK(at::equal(narrow, a.to(at::kFloat)));
  fill_normal(b, 2, "x", 1);
  CHECK_FALSE(at::equal(a, b));
  fill_normal(b, 1, "y", 1);
  CHECK_FALSE(at::equal(a, b));
}

TEST_CASE("parts of a tensor start with the values that the whole has there") {
  at::Tensor whole = at::empty({5, 9}, at::kDouble);
  fill_normal(whole, 3, "x", 1);
  for (int64_t dim = 0; dim < 2; ++dim)
    for (int64_t first = 0; first < whole.size(dim); ++first)
      for (int64_t count = 1; first + count <= whole.size(dim); ++count) {
        const at::Tensor expected = whole.narrow(dim, first, count);
        at::Tensor part = at::empty(expected.sizes(), at::kDouble);
        fill_normal(part, 3, "x", 1, part_along({5, 9}, dim, first, count));
        CHECK(at::equal(part, expected));
      }
}

}  // namespace
}  // namespace piper::nn
