// The order in which training reads the windows of an indexed dataset: every window once an epoch,
// shuffled anew in each.
#pragma once

#include <cstdint>

namespace piper::data {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit flips half of the output
// bits.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A permutation of 0 .. count - 1 for every key, evaluated at one position without memory or state.
// Requires 0 <= position < count <= 2^62.
int64_t permute(int64_t position, int64_t count, uint64_t key);

// The window of the `number`th sequence (from 0) that a run of this seed reads: epoch number /
// num_windows, and in it the permutation keyed by (seed, epoch). Nothing is saved to resume, and no
// mesh sees another order.
int64_t shuffled_window(int64_t number, int64_t num_windows, uint64_t seed);

}  // namespace piper::data
