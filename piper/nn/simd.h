// Loops compiled for the vectors of the machine that runs them, whatever the build machine was.
//
// widest([&] PIPER_INLINE_LAMBDA { loops }) compiles the loops once for AVX-512, once for AVX2 and
// once for the baseline, and picks at run time what instruction_set() allows. What the loops call
// must be PIPER_INLINE, or it stays baseline code. Two machines of different width may differ in
// the last bit (fused multiply-add, order of a vector sum); one machine never does.
#pragma once

#include <c10/util/BFloat16.h>
#include <piper/nn/instruction_set.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#define PIPER_INLINE inline __attribute__((always_inline))
#define PIPER_INLINE_LAMBDA () __attribute__((always_inline))

namespace piper::nn {

#if defined(__x86_64__)
template <class Body>
[[gnu::noinline,
  gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")]] void
run_avx512(const Body& body) {
  body();
}

template <class Body>
[[gnu::noinline, gnu::target("avx2,fma")]] void run_avx2(const Body& body) {
  body();
}

template <class Body>
void widest(const Body& body) {
  switch (instruction_set()) {
    case InstructionSet::kAvx512:
      return run_avx512(body);
    case InstructionSet::kAvx2:
      return run_avx2(body);
    case InstructionSet::kBaseline:
      return body();
  }
}
#else
template <class Body>
void widest(const Body& body) {
  body();
}
#endif

// exp(x) without a branch, so that loops over it become vectors: x = n ln 2 + r, 2^n by the
// exponent's bits, e^r by the polynomial of Cephes' expf. Relative error below 2e-7 for -87 <= x <=
// 88; clamped outside.
PIPER_INLINE float vector_exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504088896341F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// fp64 is for equality tests: exact rather than fast.
PIPER_INLINE double vector_exp(double x) { return std::exp(x); }

// From storage to what is computed in, and back: bf16 rounds to the nearest, ties to even.
PIPER_INLINE float widen(float x) { return x; }
PIPER_INLINE double widen(double x) { return x; }
PIPER_INLINE float widen(c10::BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16);
}
template <class T, class M>
PIPER_INLINE T narrow(M x) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t half = x != x ? 0x7fc0U : rounded;
    return c10::BFloat16(static_cast<uint16_t>(half), c10::BFloat16::from_bits());
  } else {
    return x;
  }
}

}  // namespace piper::nn
