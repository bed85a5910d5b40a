// Which of two libraries does which fp32 products of the CPU, as `piper profile` measured it.
//
// Products are told apart by their form and, roughly, by their size: the fastest library depends on
// whether its copying of operands into its own layout is worth it, and on the processor's
// instruction set. Both libraries are right; their last bits differ, so every rank of a run must
// choose alike, and a run that goes on must choose as it began.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::nn {

enum class ProductLibrary { kLibtorch, kOnednn };

// What a linear layer multiplies; weights are stored [out, in].
enum class ProductForm {
  kForward,   // y = x W^T
  kBackward,  // gx = gy W
  kGradient,  // gW = gy^T x
};
inline constexpr std::array kProductForms = {ProductForm::kForward, ProductForm::kBackward,
                                             ProductForm::kGradient};
const char* name(ProductForm form);  // "forward"

// A class of products, by the point that is measured for it: `rows` tokens, the other dimension of
// the result `width`.
struct ProductClass {
  ProductForm form = ProductForm::kForward;
  int64_t rows = 0;
  int64_t width = 0;
};
// The dimension that is neither rows nor width, when a class is measured.
inline constexpr int64_t kMeasuredInner = 512;

// All classes, in the order of ProductChoice::text().
const std::vector<ProductClass>& product_classes();

// One library for each class. A value; the default is libtorch for all.
class ProductChoice {
 public:
  ProductChoice() : onednn_(product_classes().size(), false) {}
  explicit ProductChoice(const std::function<ProductLibrary(const ProductClass&)>& of_class);
  // Throws InvalidInput when `text` is not what text() gives in this version.
  static ProductChoice parse(std::string_view text);

  // Returns the library of the class whose rows and width are nearest by their ratio.
  ProductLibrary of(ProductForm form, int64_t rows, int64_t width) const;
  int64_t num_onednn() const;
  // A word for each form and a letter for each class: t libtorch, o oneDNN; "tttooooo oooooooo
  // ...".
  std::string text() const;
  bool operator==(const ProductChoice&) const = default;

 private:
  std::vector<bool> onednn_;  // by product_classes()
};

}  // namespace piper::nn
