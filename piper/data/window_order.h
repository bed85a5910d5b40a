// The order in which training reads the windows of an indexed dataset: every window once an epoch,
// shuffled anew in each.
#pragma once

#include <cstdint>

namespace piper::data {

// A permutation of 0 .. count - 1 for every key, evaluated at one position without memory or state.
// Requires 0 <= position < count <= 2^62.
int64_t permute(int64_t position, int64_t count, uint64_t key);

// The window of the `number`th sequence (from 0) that a run of this seed reads: epoch number /
// num_windows, and in it the permutation keyed by (seed, epoch). Nothing is saved to resume, and no
// mesh sees another order.
int64_t shuffled_window(int64_t number, int64_t num_windows, uint64_t seed);

}  // namespace piper::data
