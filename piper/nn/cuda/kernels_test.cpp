// The kernels on a CUDA device: every team and pack, rows with gaps, no rows. The case is skipped
// where there is no such device, or no kernels were built; scripts/gpu_check asks for it.
#include <ATen/Context.h>
#include <doctest/doctest.h>
#include <piper/nn/cuda/kernel_cases_test.h>
#include <tests/switches.h>

namespace piper::nn {
namespace {

at::Device cuda_device() { return {at::kCUDA, 0}; }

bool has_device() {
  return at::globalContext().hasCUDA() && has_cuda_kernels(at::empty({1}, cuda_device()));
}

TEST_CASE("kernels of a CUDA device draw the processor's initial weights") {
  if (!has_device()) {
    piper::testing::skip_case("no CUDA device, or no kernels for one were built");
    return;
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    cuda::testing::check_initial_weights(cuda_device(), dtype);
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
        cuda::testing::check_sizes(cuda_device(), dtype, {rows, width});
      }
    for (int shifted = cuda::testing::Operands::kAllByPack; shifted < 5; ++shifted) {
      CAPTURE(shifted);
      cuda::testing::check_sizes(cuda_device(), dtype, {37, 256}, shifted);
    }
    cuda::testing::check_norm_of_rows_apart(cuda_device(), dtype);
    cuda::testing::check_rotation(cuda_device(), dtype);
  }
}

}  // namespace
}  // namespace piper::nn
