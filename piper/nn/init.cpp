#include <piper/base/error.h>
#include <piper/nn/init.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace piper::nn {

Philox philox(Philox counter, std::array<uint32_t, 2> key) {
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

uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::array<double, 2> normal_pair(uint64_t seed, uint64_t hashed_name, uint64_t pair) {
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

void fill_normal(at::Tensor target, uint64_t seed, std::string_view name, double range,
                 const std::optional<TensorPart>& part) {
  const uint64_t hashed_name = name_hash(name);
  const int64_t elements = target.numel();
  PIPER_CHECK(!part || part->num_elements() == elements, "a part of another size");
  const at::Tensor values = at::empty({elements}, at::kDouble);
  double* out = values.data_ptr<double>();
  const std::vector<Run> runs = part ? runs_of(*part) : std::vector<Run>{{.count = elements}};
  for (const Run& run : runs) {
    const int64_t end = run.whole + run.count;
    for (int64_t pair = run.whole / 2; 2 * pair < end; ++pair) {
      const auto normals = normal_pair(seed, hashed_name, static_cast<uint64_t>(pair));
      for (int64_t i = std::max(run.whole, 2 * pair); i < std::min(end, 2 * pair + 2); ++i)
        out[run.part + i - run.whole] = range * normals[static_cast<size_t>(i % 2)];
    }
  }
  target.copy_(values.view(target.sizes()));
}

}  // namespace piper::nn
