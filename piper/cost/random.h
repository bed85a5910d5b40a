// Random numbers that are a function of what they are for: the same on every machine, compiler and
// standard library, and independent of the order in which they are drawn for different things.
// SplitMix64 over a hash of the words.
#pragma once

#include <piper/base/hash.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace piper::cost {

// Not thread-safe.
class Random {
 public:
  // "Of seed 7, layer 3, sample 12": {7, 3, 12}.
  explicit Random(std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) state_ = splitmix64(state_ + word);
  }
  uint64_t next() {
    const uint64_t number = splitmix64(state_);
    state_ += kSplitMixStep;
    return number;
  }
  // From 0 to n - 1; n > 0. (The bias of the remainder is below n / 2^64.)
  uint64_t below(uint64_t n) { return next() % n; }
  // In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  // Standard normal (Box and Muller 1958; the second number is not used).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace piper::cost
