#include <doctest/doctest.h>
#include <piper/nn/aten.h>
#include <piper/nn/product.h>

namespace piper::nn {
namespace {

struct Case {
  int64_t m, n, k;
};

// A [rows, columns] matrix of the given layout, inside a wider one when `padded`.
at::Tensor matrix(int64_t rows, int64_t columns, bool transposed, bool padded) {
  const int64_t extra = padded ? 3 : 0;
  if (transposed) return at::randn({columns, rows + extra}).narrow(1, 0, rows).t();
  return at::randn({rows, columns + extra}).narrow(1, 0, columns);
}

double error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0;
  return ((got.to(at::kDouble) - want).norm() / (want.norm() + 1e-30)).item<double>();
}

}  // namespace

TEST_CASE("products agree with fp64 over layouts, leading dimensions, beta and few rows") {
  at::manual_seed(3);
  for (const Case c : {Case{1, 1, 1}, {3, 17, 5}, {16, 64, 32}, {300, 40, 24}, {40, 24, 300}}) {
    for (int layout = 0; layout < 16; ++layout) {
      const at::Tensor a = matrix(c.m, c.k, layout & 1, layout & 4),
                       b = matrix(c.k, c.n, layout & 2, layout & 8);
      const at::Tensor want = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      CAPTURE(c.m);
      CAPTURE(layout);
      CHECK(error(product(a, b), want) < 1e-6);
      const at::Tensor before = matrix(c.m, c.n, false, layout & 4);
      const at::Tensor added = add_product(before, a, b);
      CHECK(error(added, before.to(at::kDouble) + want) < 1e-5);  // one element may cancel
      // The same strides, too: a library may take another way for others.
      const at::Tensor accumulated = before.clone(at::MemoryFormat::Contiguous);
      product_out(accumulated, a, b, 1);
      CHECK(at::equal(accumulated, added));
    }
  }
}

TEST_CASE("beta 0 never reads, no rows are no work, and a product repeats bit by bit") {
  const at::Tensor a = at::randn({33, 20}), b = at::randn({20, 48});
  const at::Tensor out = at::full({33, 48}, std::numeric_limits<float>::quiet_NaN());
  product_out(out, a, b);
  CHECK(at::isfinite(out).all().item<bool>());
  CHECK(at::equal(out, product(a, b)));
  CHECK(product(a.narrow(0, 0, 0), b).size(0) == 0);
  const at::Tensor gradient = at::randn({20, 48});
  const at::Tensor kept = gradient.clone();
  product_out(kept, a.narrow(0, 0, 0).t(), at::randn({0, 48}), 1);
  CHECK(at::equal(kept, gradient));
}

TEST_CASE("a product that rounds to bf16 before it adds is told from one that does not") {
  const auto in_fp32 = [](const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                          double beta) {
    const at::Tensor made = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    out.copy_(beta == 0 ? made : made + beta * out);
  };
  CHECK(adds_unrounded(at::kCPU, in_fp32));
  CHECK_FALSE(adds_unrounded(at::kCPU, product_out));
  CHECK_FALSE(
      adds_unrounded(at::kCPU, [&](const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                                   double) { in_fp32(out, a, b, 0); }));
  CHECK_FALSE(try_main_products(at::kCPU));
}

TEST_CASE("products of bf16 are those of fp64 rounded, over layouts, leading dimensions and beta") {
  at::manual_seed(5);
  for (const Case c : {Case{1, 1, 1}, {3, 17, 5}, {40, 24, 300}, {300, 40, 24}}) {
    for (int layout = 0; layout < 16; ++layout) {
      CAPTURE(c.m);
      CAPTURE(layout);
      const at::Tensor a = matrix(c.m, c.k, layout & 1, layout & 4).to(at::kBFloat16),
                       b = matrix(c.k, c.n, layout & 2, layout & 8).to(at::kBFloat16);
      const at::Tensor want = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      CHECK(error(product(a, b), want) < 4e-3);
      const at::Tensor before = matrix(c.m, c.n, false, layout & 4).to(at::kBFloat16);
      CHECK(error(add_product(before, a, b), before.to(at::kDouble) + want) < 8e-3);
    }
  }
  const at::Tensor a = at::ones({4, 0}, at::kBFloat16), b = at::ones({0, 6}, at::kBFloat16);
  CHECK(product(a, b).sum().item<double>() == 0);
}

TEST_CASE("results without a contiguous row, and fp64, go to libtorch and are right") {
  const at::Tensor a = at::randn({12, 8}, at::kDouble), b = at::randn({8, 6}, at::kDouble);
  CHECK(error(product(a, b), at::mm(a, b)) == 0);
  const at::Tensor x = at::randn({12, 8}), y = at::randn({8, 6});
  const at::Tensor out = at::empty({6, 12}).t();
  product_out(out, x, y);
  CHECK(error(out, at::mm(x.to(at::kDouble), y.to(at::kDouble))) < 1e-6);
}

}  // namespace piper::nn
