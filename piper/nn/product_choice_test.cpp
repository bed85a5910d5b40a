#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/aten.h>
#include <piper/nn/product.h>
#include <piper/nn/product_choice.h>
#include <piper/nn/product_onednn.h>
#include <tests/switches.h>

#include <cstdlib>

namespace piper::nn {
namespace {

ProductChoice all(ProductLibrary library) {
  return ProductChoice([=](const ProductClass&) { return library; });
}

// Until it goes, products are done by a choice.
struct Chosen {
  explicit Chosen(const ProductChoice& choice) { choose_products(choice); }
  ~Chosen() { choose_products(std::nullopt); }
};

}  // namespace

TEST_CASE("a choice is its text; nonsense is refused with what is allowed") {
  const ProductChoice gradients([](const ProductClass& each) {
    return each.form == ProductForm::kGradient && each.rows >= 512 ? ProductLibrary::kOnednn
                                                                   : ProductLibrary::kLibtorch;
  });
  CHECK(gradients.text() == "tttttttt tttttttt ttttoooo");
  CHECK(ProductChoice::parse(gradients.text()) == gradients);
  CHECK(gradients.num_onednn() == 4);
  CHECK(ProductChoice().num_onednn() == 0);
  for (const char* bad : {"", "t", "tttttttttttttttttttttttttt", "tttttttt tttttttt tttttttx",
                          "tttttttt tttttttt tttttttt "})
    CHECK_THROWS_AS(ProductChoice::parse(bad), InvalidInput);
}

TEST_CASE("sizes belong to the nearest measured ones") {
  const ProductChoice wide([](const ProductClass& each) {
    return each.rows == 128 && each.width == 1024 ? ProductLibrary::kOnednn
                                                  : ProductLibrary::kLibtorch;
  });
  const auto of = [&](int64_t rows, int64_t width) {
    return wide.of(ProductForm::kForward, rows, width) == ProductLibrary::kOnednn;
  };
  CHECK(of(128, 1024));
  CHECK(of(65, 513));    // just beyond sqrt(32 x 128) and sqrt(256 x 1024)
  CHECK(!of(64, 1024));  // the middle goes to the smaller one
  CHECK(!of(128, 512));
  CHECK(of(256, int64_t{1} << 20));
  CHECK(!of(257, 1024));
  CHECK(!of(1, 1024));
}

TEST_CASE("products follow the choice, class by class, and agree with each other") {
  if (!has_onednn() || std::getenv("PIPER_PRODUCTS") != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    return piper::testing::skip_case("one library alone does the products here");
  }
  at::manual_seed(5);
  const at::Tensor x = at::randn({130, 96}), w = at::randn({260, 96}), gy = at::randn({130, 260});
  for (const auto& [a, b] : {std::pair{x, w.t()}, {gy, w}, {gy.t(), x}}) {
    at::Tensor by[2] = {at::empty({a.size(0), b.size(1)}), at::empty({a.size(0), b.size(1)})};
    for (const auto library : {ProductLibrary::kLibtorch, ProductLibrary::kOnednn}) {
      at::Tensor& out = by[static_cast<size_t>(library)];
      REQUIRE(product_by(library, out, a, b));
      const Chosen chosen(all(library));
      CHECK(at::equal(product(a, b), out));
    }
    CHECK(at::allclose(by[0], by[1], 1e-4, 1e-4));
  }
}

}  // namespace piper::nn
