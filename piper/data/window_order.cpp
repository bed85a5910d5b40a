// A Feistel network permutes the numbers of 2h bits (Luby, Rackoff 1988): of two halves, each round
// exchanges
//   left, right  :=  right, left xor f(round, right)
// which is undone whatever f is. Numbers outside 0 .. count - 1 are permuted again until they fall
// inside (cycle walking; Black, Rogaway 2002): still a permutation. 2^2h < 4 count, so that takes
// fewer than four walks on average.
#include <piper/base/error.h>
#include <piper/base/hash.h>
#include <piper/data/window_order.h>

#include <bit>

namespace piper::data {
namespace {

constexpr uint64_t kRounds = 6;

uint64_t feistel(uint64_t x, int half_bits, uint64_t key) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits, right = x & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (splitmix64(splitmix64(key + round) ^ right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

int64_t permute(int64_t position, int64_t count, uint64_t key) {
  PIPER_CHECK(position >= 0 && position < count && count <= int64_t{1} << 62);
  const auto limit = static_cast<uint64_t>(count);
  const int half_bits = (std::bit_width(limit - 1) + 1) / 2;
  if (half_bits == 0) return 0;
  auto x = static_cast<uint64_t>(position);
  do x = feistel(x, half_bits, key);
  while (x >= limit);
  return static_cast<int64_t>(x);
}

int64_t shuffled_window(int64_t number, int64_t num_windows, uint64_t seed) {
  PIPER_CHECK(number >= 0 && num_windows > 0);
  const auto epoch = static_cast<uint64_t>(number / num_windows);
  return permute(number % num_windows, num_windows, splitmix64(splitmix64(seed) ^ epoch));
}

}  // namespace piper::data
