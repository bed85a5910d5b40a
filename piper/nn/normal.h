// The numbers behind initial weights (init.h says which), on the host and on a CUDA device.
#pragma once

#include <piper/nn/cuda/host_device.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace piper::nn {

using Philox = std::array<uint32_t, 4>;

// Philox4x32-10 (Salmon et al., SC 2011).
PIPER_EVERYWHERE Philox philox(Philox counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Standard normals 2 * pair and 2 * pair + 1 of the tensor whose name has this hash.
PIPER_EVERYWHERE std::array<double, 2> normal_pair(uint64_t seed, uint64_t hashed_name,
                                                   uint64_t pair) {
  const Philox bits =
      philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32),
              static_cast<uint32_t>(hashed_name), static_cast<uint32_t>(hashed_name >> 32)},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  // 53 bits each; the first in (0, 1], so that its logarithm is finite.
  const auto uniform = [&](int i) {
    return static_cast<double>((uint64_t{bits[i]} << 32 | bits[i + 1]) >> 11) * 0x1p-53;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform(0) + 0x1p-53));
  const double angle = 2.0 * std::numbers::pi * uniform(2);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace piper::nn
