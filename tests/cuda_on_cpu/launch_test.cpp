// The kernels of CUDA devices (piper/nn/cuda/kernels.cu) and their callers, run on the CPU thread
// by thread (threads.h), every access to memory looked at (memory.h), against the compositions.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <piper/nn/cuda/kernel_cases_test.h>
#include <piper/nn/cuda/stream.h>
#include <piper/optim/optimizer.h>
#include <tests/cuda_on_cpu/memory.h>
#include <tests/cuda_on_cpu/threads.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace piper::nn::cuda {

// In place of stream.cpp: the CPU's tensors are the device's.
bool computes_with(const at::Tensor& tensor) { return tensor.is_cpu(); }
Place::Place(const at::Tensor& tensor) : device_(tensor.device()), stream_(nullptr) {}

}  // namespace piper::nn::cuda

namespace piper::testing::cuda_on_cpu {
namespace {

using nn::cuda::testing::check_norm;
using nn::cuda::testing::check_norm_backward;
using nn::cuda::testing::check_sizes;
using nn::cuda::testing::Operands;
using nn::cuda::testing::Sizes;

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16};

// Seeds of the order of threads and of what the tensors hold.
struct Run {
  explicit Run(uint64_t seed) {
    set_seed(seed);
    at::manual_seed(seed);
    at::set_num_threads(1);
  }
  TensorMemory memory;
};

// Widths of rows at which a team becomes a larger one, in packs of 16 bytes: 64 and 1024.
std::vector<int64_t> widths_by_pack(at::ScalarType dtype) {
  const auto n = static_cast<int64_t>(16 / at::elementSize(dtype));
  return {n, 8, 32 * n, 64 * n, 65 * n, 257 * n, 1024 * n, 1025 * n};
}

TEST_CASE("kernels compute what the compositions do, at every size of team and pack") {
  uint64_t seed = 1;
  for (const at::ScalarType dtype : kDtypes) {
    std::vector<int64_t> widths = widths_by_pack(dtype);
    for (const int64_t width : {3, 33, 63, 65, 257, 1023, 1025}) widths.push_back(width);
    for (const int64_t width : widths)
      for (const int64_t rows : {0, 3}) {
        if (rows == 0 && width > 64) continue;
        CAPTURE(seed);
        CAPTURE(width);
        CAPTURE(rows);
        const Run run(seed++);
        check_sizes(at::kCPU, dtype, {rows, width});
      }
  }
}

TEST_CASE("more rows than a block has warps, and than the norm has strips") {
  uint64_t seed = 100;
  for (const at::ScalarType dtype : kDtypes)
    for (const auto& [rows, width] : {Sizes{1, 48}, {7, 48}, {8, 48}, {9, 7}, {37, 40}, {530, 8}}) {
      CAPTURE(seed);
      CAPTURE(rows);
      CAPTURE(width);
      const Run run(seed++);
      check_sizes(at::kCPU, dtype, {rows, width});
    }
}

TEST_CASE("the widest rows whose norm has a kernel, and wider ones") {
  uint64_t seed = 200;
  constexpr int64_t kWidest = nn::cuda::kNormBackwardWidth;
  for (const auto& [dtype, width] :
       std::vector<std::pair<at::ScalarType, int64_t>>{{at::kDouble, kWidest},
                                                       {at::kFloat, kWidest},
                                                       {at::kBFloat16, kWidest},
                                                       {at::kBFloat16, kWidest - 1},
                                                       {at::kFloat, kWidest + 1}}) {
    CAPTURE(seed);
    CAPTURE(width);
    const Run run(seed++);
    const at::ScalarType drawn = dtype;
    const auto draw = [&] { return Operands(at::kCPU, drawn, Operands::kNone); };
    check_norm(draw, {2, width});
    check_norm_backward(draw, {2, width}, {}, 1);
  }
}

TEST_CASE("all tensors begin at multiples of 16 bytes, or all but one") {
  uint64_t seed = 300;
  for (const at::ScalarType dtype : kDtypes)
    for (int shifted = Operands::kAllByPack; shifted < 5; ++shifted) {
      CAPTURE(seed);
      CAPTURE(shifted);
      const Run run(seed++);
      check_sizes(at::kCPU, dtype, {5, 48}, shifted);
    }
}

TEST_CASE("rows that lie apart, rotation, and initial weights") {
  uint64_t seed = 400;
  for (const at::ScalarType dtype : kDtypes) {
    CAPTURE(seed);
    const Run run(seed++);
    nn::cuda::testing::check_norm_of_rows_apart(at::kCPU, dtype);
    nn::cuda::testing::check_rotation(at::kCPU, dtype);
    nn::cuda::testing::check_initial_weights(at::kCPU, dtype);
  }
}

// Flat, `first` elements behind the beginning of its memory.
at::Tensor flat(int64_t n, int64_t first, at::ScalarType dtype) {
  return at::randn({n + first}, at::kDouble).to(dtype).narrow(0, first, n);
}

TEST_CASE("AdamW of fp32, of fp64, and of bf16 beside fp32 master copies") {
  uint64_t seed = 500;
  for (const at::ScalarType dtype : kDtypes)
    for (const int64_t n : {1, 7, 8, 1000, 1024, 1031})
      for (const int64_t first : {0, 1}) {
        CAPTURE(seed);
        CAPTURE(n);
        CAPTURE(first);
        const Run run(seed++);
        nn::cuda::testing::check("AdamW", {flat(n, first, dtype)}, [&](const auto& t) {
          at::manual_seed(seed);
          const nn::Parameter parameter{
              .name = "w", .value = t[0], .gradient = flat(n, first, nn::main_type(dtype))};
          optim::AdamW optimizer({parameter}, {});
          optimizer.step(0.01, 0.5);
          parameter.gradient.copy_(flat(n, 0, parameter.gradient.scalar_type()));
          optimizer.step(0.02);
        });
      }
}

TEST_CASE("the sum of a gradient's squares, in parts") {
  uint64_t seed = 600;
  for (const int64_t n : {4, 1023, 300000})
    for (const int64_t first : {0, 1}) {
      CAPTURE(seed);
      CAPTURE(n);
      CAPTURE(first);
      const Run run(seed++);
      const at::Tensor gradient = flat(n, first, at::kFloat);
      const std::vector<nn::Parameter> parameters{
          {.name = "w", .value = gradient, .gradient = gradient}};
      const double made =
          optim::sum_of_squares(parameters, optim::all_shares(parameters), /*gradients=*/{});
      CHECK(made ==
            doctest::Approx(gradient.to(at::kDouble).square().sum().item<double>()).epsilon(1e-12));
    }
}

TEST_CASE("every access of the kernels was looked at") {
#ifdef __SANITIZE_ADDRESS__
  CHECK(num_accesses() == 0);  // by AddressSanitizer
#else
  const Run run(700);
  const size_t before = num_accesses();
  const at::Tensor x = at::randn({4, 64}), w = at::randn({64}), y = at::empty_like(x);
  nn::rms_norm_out(y, x, w, 1e-5);
  CHECK(num_accesses() - before >= 4 * (2 * 16 + 16 + 16));  // x twice, weight, y: by packs
#endif
}

}  // namespace
}  // namespace piper::testing::cuda_on_cpu
