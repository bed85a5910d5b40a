#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/product_choice.h>

#include <algorithm>

namespace piper::nn {
namespace {

constexpr std::array<int64_t, 4> kRows = {32, 128, 512, 1536};
constexpr std::array<int64_t, 2> kWidths = {256, 1024};

constexpr size_t kOfForm = kRows.size() * kWidths.size();  // classes

// The index of the value that is nearest by its ratio; ties go to the smaller one.
template <size_t N>
size_t nearest(const std::array<int64_t, N>& values, int64_t size) {
  size_t index = 0;
  while (index + 1 < N && size * size > values[index] * values[index + 1]) ++index;
  return index;
}

size_t index_of(ProductForm form, int64_t rows, int64_t width) {
  return (static_cast<size_t>(form) * kRows.size() + nearest(kRows, rows)) * kWidths.size() +
         nearest(kWidths, width);
}

constexpr char kLibtorchLetter = 't', kOnednnLetter = 'o';

}  // namespace

const char* name(ProductForm form) {
  switch (form) {
    case ProductForm::kForward:
      return "forward";
    case ProductForm::kBackward:
      return "backward";
    case ProductForm::kGradient:
      return "gradient";
  }
  return "?";
}

const std::vector<ProductClass>& product_classes() {
  static const std::vector<ProductClass> classes = [] {
    std::vector<ProductClass> all;
    for (const ProductForm form : kProductForms)
      for (const int64_t rows : kRows)
        for (const int64_t width : kWidths) all.push_back({form, rows, width});
    return all;
  }();
  return classes;
}

ProductChoice::ProductChoice(const std::function<ProductLibrary(const ProductClass&)>& of_class) {
  for (const ProductClass& each : product_classes())
    onednn_.push_back(of_class(each) == ProductLibrary::kOnednn);
}

ProductChoice ProductChoice::parse(std::string_view text) {
  ProductChoice choice;
  const std::string form = choice.text();
  bool is_known = text.size() == form.size();
  for (size_t i = 0, at = 0; is_known && i < text.size(); ++i) {
    if (form[i] == ' ') {
      is_known = text[i] == ' ';
      continue;
    }
    is_known = text[i] == kLibtorchLetter || text[i] == kOnednnLetter;
    if (is_known) choice.onednn_[at++] = text[i] == kOnednnLetter;
  }
  if (!is_known)
    throw InvalidInput(fmt::format(
        "product libraries are '{}'; allowed: {} words of {} letters, t (libtorch) or o (oneDNN)",
        text, kProductForms.size(), kOfForm));
  return choice;
}

ProductLibrary ProductChoice::of(ProductForm form, int64_t rows, int64_t width) const {
  return onednn_[index_of(form, rows, width)] ? ProductLibrary::kOnednn : ProductLibrary::kLibtorch;
}

int64_t ProductChoice::num_onednn() const { return std::ranges::count(onednn_, true); }

std::string ProductChoice::text() const {
  std::string text;
  for (size_t i = 0; i < onednn_.size(); ++i) {
    if (i > 0 && i % kOfForm == 0) text += ' ';
    text += onednn_[i] ? kOnednnLetter : kLibtorchLetter;
  }
  return text;
}

}  // namespace piper::nn
