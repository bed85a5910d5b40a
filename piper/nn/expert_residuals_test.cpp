#include <doctest/doctest.h>
#include <piper/nn/expert_residuals.h>

#include <vector>

namespace piper::nn {
namespace {

strategy::Strategy of_ranks(int64_t edp, int64_t compression) {
  strategy::Strategy s;
  s.mesh = {.ep = 1, .dp = edp};
  s.zero = 1;
  s.expert_compression = compression;
  return s;
}

at::Tensor slow_wave(int64_t n, double phase, at::ScalarType dtype) {
  return at::sin(at::arange(n, at::kDouble) * 1.7 + phase).to(dtype);
}

}  // namespace

TEST_CASE("the farthest elements of every block are told as they are, others stay") {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
    const strategy::ResidualCode code = strategy::residual_code(of_ranks(2, 8), 2 * 3 * 64, bytes);
    REQUIRE(code.block == 64);
    const at::Tensor now = slow_wave(192, 0, dtype), before = slow_wave(192, 0.3, dtype),
                     told = before.clone();
    decode_residuals_(told, encode_residuals(now, told, code), code);
    const at::Tensor far = (now.to(at::kDouble) - before.to(at::kDouble)).abs().view({3, 64});
    for (int64_t b = 0; b < 3; ++b) {
      const at::Tensor is_now = told.view({3, 64})[b].eq(now.view({3, 64})[b]),
                       is_before = told.view({3, 64})[b].eq(before.view({3, 64})[b]);
      CHECK(is_now.logical_or(is_before).all().item<bool>());
      CHECK(is_now.logical_and(is_before.logical_not()).sum().item<int64_t>() == code.kept);
      // None that stayed is farther than one that was told.
      const at::Tensor stayed = far[b].masked_select(is_now.logical_not()),
                       sent = far[b].masked_select(is_before.logical_not());
      CHECK(stayed.max().item<double>() <= sent.min().item<double>());
    }
  }
}

TEST_CASE("what stands still is known after as many messages as a block has parts") {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const strategy::ResidualCode code = strategy::residual_code(
        of_ranks(1, 50), 4 * 256, static_cast<int64_t>(c10::elementSize(dtype)));
    const at::Tensor now = slow_wave(1024, 1, dtype), told = at::zeros({1024}, dtype);
    const int64_t messages = (code.block + code.kept - 1) / code.kept;
    for (int64_t i = 0; i < messages; ++i)
      decode_residuals_(told, encode_residuals(now, told, code), code);
    CHECK(at::equal(told, now));
  }
}

TEST_CASE("a long share is encoded in pieces as in one") {
  const strategy::ResidualCode code = strategy::residual_code(of_ranks(1, 20), int64_t{1} << 21, 4);
  const at::Tensor now = slow_wave(int64_t{1} << 21, 0, at::kFloat), told = at::zeros_like(now);
  decode_residuals_(told, encode_residuals(now, told, code), code);
  const at::Tensor second = told.narrow(0, int64_t{3} << 19, code.block),
                   wanted = now.narrow(0, int64_t{3} << 19, code.block);
  at::Tensor alone = at::zeros_like(second);
  decode_residuals_(alone, encode_residuals(wanted, alone, code), code);
  CHECK(at::equal(second, alone));
}

}  // namespace piper::nn
