// The kernels on a CUDA device against the compositions on the same tensors: every team and pack,
// rows with gaps, no rows. The case is skipped where there is no such device, or no kernels were
// built; scripts/gpu_check asks for it.
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <piper/nn/init.h>
#include <piper/nn/tensor_ops.h>
#include <tests/switches.h>

#include <array>
#include <functional>
#include <vector>

namespace piper::nn {
namespace {

at::Device cuda_device() { return {at::kCUDA, 0}; }

bool has_device() {
  return at::globalContext().hasCUDA() && has_cuda_kernels(at::empty({1}, cuda_device()));
}

// Of the largest element.
double error(const at::Tensor& made, const at::Tensor& expected) {
  if (expected.numel() == 0) return made.numel() == 0 ? 0 : 1;
  const at::Tensor a = made.cpu().to(at::kDouble), b = expected.cpu().to(at::kDouble);
  return ((a - b).abs().max() / (b.abs().max() + 1e-30)).item<double>();
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-11 : dtype == at::kFloat ? 1e-4 : 2e-2;
}

// `compute` works on the tensors in place: by the kernels, and on copies by the compositions.
void check(const char* what, std::vector<at::Tensor> tensors,
           const std::function<void(std::vector<at::Tensor>&)>& compute) {
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : tensors) expected.push_back(tensor.clone());
  compute(tensors);
  compute_by_compositions(true);
  compute(expected);
  compute_by_compositions(false);
  for (size_t i = 0; i < tensors.size(); ++i) {
    INFO(what, ", tensor ", i);
    CHECK(error(tensors[i], expected[i]) <= tolerance(tensors[i].scalar_type()));
  }
}

void check_width(int64_t rows, int64_t width, at::ScalarType dtype) {
  const at::TensorOptions options = at::TensorOptions(cuda_device()).dtype(dtype),
                          main = options.dtype(main_type(dtype)), index = options.dtype(at::kInt);
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, options); };
  const auto gaps = [&] { return random({rows, 2 * width}).narrow(1, width, width); };
  for (const bool has_gaps : {false, true}) {
    const at::Tensor x = has_gaps ? gaps() : random({rows, width}), w = random({width});
    check("norm", {at::empty({rows, width}, options)},
          [&](auto& t) { rms_norm_out(t[0], x, w, 1e-5); });
    for (const double beta : {0.0, 1.0}) {
      const at::Tensor residual = beta == 0 ? random({rows, width}) : at::Tensor();
      check("norm, backward", {random({rows, width}), at::randn({width}, main)},
            [&](auto& t) { rms_norm_backward_(t[0], x, w, 1e-5, t[1], beta, residual); });
    }
  }
  check("SwiGLU", {at::empty({rows, width}, options), random({rows, 2 * width})},
        [&](auto& t) { swiglu_out(t[0], t[1]); });
  check("SwiGLU, backward", {random({rows, 2 * width}), random({rows, width})},
        [&](auto& t) { swiglu_backward_(t[0], t[1]); });
  if (rows == 0) return;
  constexpr int64_t kCopies = 3;
  at::Tensor position =
      at::randperm(rows * kCopies, at::kLong).to(at::kInt).view({rows, kCopies}).to(index);
  const at::Tensor returned = random({rows * kCopies, width}), x1 = random({rows, width}),
                   weights = at::rand({rows * kCopies}, main);
  const at::Tensor token =
      at::arange(rows * kCopies, index.dtype(at::kLong)).remainder(rows).to(at::kInt);
  check("permute", {at::empty_like(returned)}, [&](auto& t) { gather_rows_out(t[0], x1, token); });
  check("sum", {at::empty_like(x1)}, [&](auto& t) { sum_rows_out(t[0], returned, position); });
  check("merge", {at::empty_like(x1)},
        [&](auto& t) { merge_out(t[0], returned, weights, position, x1); });
  check("merge, backward", {at::empty_like(returned), at::empty_like(weights)},
        [&](auto& t) { merge_backward_out(t[0], t[1], x1, returned, weights, position); });
  check("merge, backward, of a share", {at::empty({rows, width}, options), at::empty_like(weights)},
        [&](auto& t) { merge_backward_out(t[0], t[1], x1, returned, weights, position, rows); });
  const at::Tensor to = at::arange(rows, index.dtype(at::kLong)).remainder(3);
  check("embedding's gradient", {at::zeros({3, width}, main)},
        [&](auto& t) { add_rows_(t[0], to, x1); });
  at::Tensor target = at::arange(rows, index.dtype(at::kLong)).remainder(width);
  target[0] = -100;
  double losses[2] = {0, 0};
  int which = 0;
  check("cross-entropy", {random({rows, width})},
        [&](auto& t) { losses[which++] = cross_entropy_(t[0], target, true, 0.5).read(); });
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(tolerance(dtype)));
}

TEST_CASE("kernels of a CUDA device draw the processor's initial weights") {
  if (!has_device()) {
    piper::testing::skip_case("no CUDA device, or no kernels for one were built");
    return;
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const bool has_gaps : {false, true}) {
      const auto drawn = [&](const at::Device& device) {
        at::Tensor to = at::zeros({6, 14}, at::TensorOptions(device).dtype(dtype));
        if (has_gaps) to = to.narrow(1, 3, 7);
        fill_normal(to, 5, "w", 0.02);
        fill_normal(to.narrow(0, 2, 3), 5, "w", 0.02, part_along({3, 40}, 1, 5, to.size(1)));
        return to;
      };
      const double most = dtype == at::kBFloat16 ? 1e-2 : dtype == at::kFloat ? 1e-6 : 1e-13;
      CHECK(error(drawn(cuda_device()), drawn(at::kCPU)) <= most);
    }
}

TEST_CASE("kernels of a CUDA device compute what the compositions do there") {
  if (!has_device()) {
    piper::testing::skip_case("no CUDA device, or no kernels for one were built");
    return;
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {7, 48, 256, 1024, 2048, 4096, 5120, 7168, 8192})
      for (const int64_t rows : {0, 37, 700}) {
        CAPTURE(width);
        CAPTURE(rows);
        check_width(rows, width, dtype);
      }
    const at::TensorOptions options = at::TensorOptions(cuda_device()).dtype(dtype);
    for (const bool interleaved : {false, true})
      check("rotation", {at::randn({24, 3, 80}, options)}, [&](auto& t) {
        rotate_(t[0],
                {.cosine = at::ones({6, 32}, options.dtype(main_type(dtype))) * 0.6,
                 .sine = at::ones({6, 32}, options.dtype(main_type(dtype))) * 0.8,
                 .interleaved = interleaved},
                6, true);
      });
  }
}

}  // namespace
}  // namespace piper::nn
