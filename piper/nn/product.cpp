#include <ATen/Version.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/activation.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/device_trials.h>
#include <piper/nn/instruction_set.h>
#include <piper/nn/kernels.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>

namespace piper::nn {
namespace {

// A matrix as BLAS sees it: rows `leading` apart, or columns when `transposed`.
struct Operand {
  bool transposed = false;
  int64_t leading = 0;
};

// Nothing when neither dimension is contiguous, or rows overlap.
std::optional<Operand> operand(const at::Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (x.stride(1) == 1 && x.stride(0) >= std::max<int64_t>(columns, 1))
    return Operand{false, x.stride(0)};
  if (x.stride(0) == 1 && x.stride(1) >= std::max<int64_t>(rows, 1))
    return Operand{true, x.stride(1)};
  return std::nullopt;
}

// With AVX-512, few rows times a transposed matrix: oneDNN's copying of it into its own layout is
// not worth it.
constexpr int64_t kFewRows = 256;

// With AVX2, oneDNN copies the operands into its own layout where 1/m + 1/n is below this (its
// gemm_driver.cpp, nocopy_checker_avx2). Among the products without a copy, those of two matrices
// stored by rows are slower than MKL's, and most of those with one of them transposed are faster
// (the table in docs/numerics.md).
constexpr double kCopiedBelow = 0.0038;

bool suits_onednn(const Operand& left, const Operand& right, int64_t m, int64_t n) {
  switch (instruction_set()) {
    case InstructionSet::kAvx512:
      return !right.transposed || left.transposed || m >= kFewRows;
    case InstructionSet::kAvx2:
      return left.transposed != right.transposed ||
             1 / static_cast<double>(m) + 1 / static_cast<double>(n) < kCopiedBelow;
    case InstructionSet::kBaseline:
      return true;
  }
  return false;
}

bool is_amd() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

// Set by choose_products() alone.
std::optional<ProductChoice>& measured_choice() {
  static std::optional<ProductChoice> choice;
  return choice;
}

bool is_decided_by_environment() {
  static const bool is_set =
      std::getenv("PIPER_PRODUCTS") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  return is_set;
}

bool wants_onednn(const Operand& left, const Operand& right, int64_t m, int64_t n, int64_t k) {
  if (const auto& choice = measured_choice()) {
    const ProductForm form = left.transposed    ? ProductForm::kGradient
                             : right.transposed ? ProductForm::kForward
                                                : ProductForm::kBackward;
    return choice->of(form, form == ProductForm::kGradient ? k : m, n) == ProductLibrary::kOnednn;
  }
  return uses_onednn() && suits_onednn(left, right, m, n);
}

// What oneDNN is asked for; nothing where the operands are none of its kind.
std::optional<OnednnProduct> onednn_operands(const at::Tensor& out, const at::Tensor& a,
                                             const at::Tensor& b, double beta) {
  if (!has_kernels(out) || out.scalar_type() != at::kFloat) return std::nullopt;
  const auto to = operand(out), left = operand(a), right = operand(b);
  if (!to || !left || !right || to->transposed || out.numel() == 0 || a.size(1) == 0)
    return std::nullopt;
  return OnednnProduct{.transpose_a = left->transposed,
                       .transpose_b = right->transposed,
                       .m = out.size(0),
                       .n = out.size(1),
                       .k = a.size(1),
                       .a = a.data_ptr<float>(),
                       .lda = left->leading,
                       .b = b.data_ptr<float>(),
                       .ldb = right->leading,
                       .beta = static_cast<float>(beta),
                       .c = out.data_ptr<float>(),
                       .ldc = to->leading};
}

bool by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  if (!measured_choice() && !uses_onednn()) return false;
  const auto p = onednn_operands(out, a, b, beta);
  return p && wants_onednn({p->transpose_a, p->lda}, {p->transpose_b, p->ldb}, p->m, p->n, p->k) &&
         onednn_product(*p);
}

// By libtorch. What its library takes for itself meanwhile counts for no rank: oneDNN repacks bf16
// operands in storage that it gets from libtorch's allocator, and how much depends on the processor
// (on one with AMX 480 KB for an expert of 192 x 128).
void mm_by_libtorch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  const AllocatingRank nobody;
  at::Tensor to = out;
  if (beta == 0)
    at::mm_out(to, a, b);
  else
    at::addmm_out(to, out, a, b, beta, 1.0);
}

// Without AVX-512, libtorch has no library for products of bf16 and multiplies element by element,
// at a tenth of the speed of fp32 (docs/numerics.md).
bool widens_bf16(const at::Tensor& out) {
  return has_kernels(out) && out.scalar_type() == at::kBFloat16 &&
         instruction_set() < InstructionSet::kAvx512;
}

// Multiplies bf16 by way of fp32: products and sums are exact to fp32 and are rounded once, at the
// end. As in oneDNN, the copies count for no rank.
void widened_product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                         double beta) {
  const AllocatingRank nobody;
  const at::Tensor wide =
      beta == 0 ? at::empty(out.sizes(), out.options().dtype(at::kFloat)) : out.to(at::kFloat);
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  if (!by_onednn(wide, wide_a, wide_b, beta)) mm_by_libtorch(wide, wide_a, wide_b, beta);
  const at::Tensor& to = out;
  to.copy_(wide);
}

using ProductTrials = DeviceTrials<at::ScalarType, bool>;
ProductTrials& product_trials() {
  static ProductTrials all;
  return all;
}

// out, wider than a and b, := beta out + a b, added in the wider type.
void wide_product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                      double beta) {
  at::Tensor to = out;
  if (beta == 0)
    at::mm_out(to, a, b, out.scalar_type());
  else
    at::addmm_out(to, out, a, b, out.scalar_type(), beta, 1.0);
}

// Elsewhere some rows at a time, so that the product in the narrower type needs little memory.
void main_product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                      double beta) {
  if (out.is_cuda() && out.scalar_type() == at::kFloat &&
      product_trials().found(out.device(), a.scalar_type()))
    return wide_product_out(out, a, b, beta);
  for (int64_t first = 0; first < out.size(0); first += cost::kGradientRowsAtOnce) {
    const int64_t count = std::min(cost::kGradientRowsAtOnce, out.size(0) - first);
    const at::Tensor product = at::empty({count, out.size(1)}, a.options());
    product_out(product, a.narrow(0, first, count), b);
    at::Tensor to = out.narrow(0, first, count);
    if (beta == 0)
      to.copy_(product);
    else if (to.is_contiguous() && has_kernels(to) && a.scalar_type() == at::kBFloat16)
      kernels::add_narrow(to.data_ptr<float>(), product.const_data_ptr<c10::BFloat16>(),
                          to.numel());  // add_ would widen a copy
    else
      to.add_(product);
  }
}

}  // namespace

bool uses_onednn() {
  static const bool uses = [] {
    const char* wanted = std::getenv("PIPER_PRODUCTS");  // NOLINT(concurrency-mt-unsafe)
    return uses_onednn(wanted, is_amd() && instruction_set() >= InstructionSet::kAvx2);
  }();
  return uses;
}

bool uses_onednn(const char* wanted, bool is_faster_here) {
  if (wanted == nullptr) return has_onednn() && is_faster_here;
  const std::string_view library = wanted;
  if (library != "libtorch" && library != "onednn")
    throw InvalidInput(fmt::format("PIPER_PRODUCTS is '{}'; allowed: libtorch, onednn", library));
  if (library == "onednn" && !has_onednn())
    throw InvalidInput("PIPER_PRODUCTS is 'onednn', and Piper was built without libdnnl-dev");
  return library == "onednn";
}

bool choose_products(const std::optional<ProductChoice>& choice) {
  if (is_decided_by_environment()) return false;
  measured_choice() = choice;
  return true;
}

ProductChoice choice_by_rule() {
  return ProductChoice([](const ProductClass& of) {
    // As product_of() in the benchmarks multiplies them; where the rule looks at m, those are rows.
    const bool is_gradient = of.form == ProductForm::kGradient;
    const Operand left{is_gradient, 0}, right{of.form == ProductForm::kForward, 0};
    const int64_t m = is_gradient ? kMeasuredInner : of.rows;
    return uses_onednn() && suits_onednn(left, right, m, of.width) ? ProductLibrary::kOnednn
                                                                   : ProductLibrary::kLibtorch;
  });
}

bool product_by(ProductLibrary library, const at::Tensor& out, const at::Tensor& a,
                const at::Tensor& b) {
  if (library == ProductLibrary::kOnednn) {
    const auto operands = onednn_operands(out, a, b, 0);
    return operands && onednn_product(*operands);
  }
  mm_by_libtorch(out, a, b, 0);
  return true;
}

void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta) {
  PIPER_DCHECK(out.size(0) == a.size(0) && out.size(1) == b.size(1) && a.size(1) == b.size(0));
  if (out.scalar_type() != a.scalar_type()) return main_product_out(out, a, b, beta);
  if (widens_bf16(out)) return widened_product_out(out, a, b, beta);
  if (!by_onednn(out, a, b, beta)) mm_by_libtorch(out, a, b, beta);
}

bool adds_unrounded(const at::Device& device, const MainProduct& product) {
  constexpr int64_t kRows = 48, kIn = 32, kOut = 64;
  constexpr double kAllowed = 1e-4;  // rounded to bf16, the largest errs by 30 times as much
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor g = trial_operand({kRows, kOut}, 0, options),
                   x = trial_operand({kRows, kIn}, 1, options);
  const at::Tensor begun = trial_operand({kOut, kIn}, 2, options.dtype(at::kFloat));
  // As a gradient: of a matrix that is stored by columns.
  const at::Tensor expected = at::mm(g.t().to(at::kFloat), x.to(at::kFloat));
  for (const double beta : {0.0, 1.0}) {
    const at::Tensor made = begun.clone();
    product(made, g.t(), x, beta);
    const at::Tensor error = (made - (expected + beta * begun)).abs().max();
    if (!(error.item<double>() <= kAllowed)) return false;
  }
  return true;
}

bool try_main_products(const at::Device& device) {
  if (!device.is_cuda()) return false;
  return product_trials().once(device, at::kBFloat16, [&] {
    return succeeds(device, [&] { return adds_unrounded(device, wide_product_out); });
  });
}

std::vector<std::string> main_products_found() {
  return product_trials().lines([](at::ScalarType dtype, bool works) {
    return fmt::format("gradients of {}: {}", at::toString(dtype),
                       works ? "added in fp32 by the product" : "rounded, then added");
  });
}

void open_math_libraries(const at::Device& device) {
  static std::once_flag vector_math;
  std::call_once(vector_math, [] {
    const AllocatingRank nobody;
    at::zeros({1}, at::kDouble).cos();
  });
  if (device.is_cpu()) return;
  constexpr int64_t kSmall = 16;
  const at::Tensor x = at::zeros({kSmall, kSmall}, at::TensorOptions(device).dtype(at::kFloat));
  product(x, x);
}

std::string first_call_note() {
  constexpr std::string_view kWord = "Version ";
  constexpr int kMended = 2025;
  const std::string version = at::get_mkl_version();
  const size_t at = version.find(kWord);
  if (at == std::string::npos) return "";
  const std::string number = version.substr(at + kWord.size(), 6);  // "2024.2"
  if (std::atoi(number.c_str()) >= kMended) return "";
  return fmt::format(
      "libtorch holds oneMKL {}, whose vector math may choose another kernel where threads make "
      "its first call at once; one thread makes it before the ranks begin (docs/numerics.md)",
      number);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product_out(out, a, b);
  return out;
}

at::Tensor add_product(const at::Tensor& added, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = added.clone(at::MemoryFormat::Contiguous);
  product_out(out, a, b, 1);
  return out;
}

}  // namespace piper::nn
