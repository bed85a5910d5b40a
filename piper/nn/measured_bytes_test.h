// What a call takes of the counting allocator, for the tests that hold prices of memory to it.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/nn/counting_allocator.h>

#include <cstdint>

namespace piper::nn::testing {

struct Measured {
  int64_t kept = 0;  // live afterwards, beyond before
  int64_t peak = 0;  // above before
};

// Measures what the calling thread allocates as `rank` (AllocatingRank).
template <class F>
Measured measured_bytes(Rank rank, F f) {
  reset_peak(rank);
  const int64_t before = live_bytes(rank);
  f();
  return {live_bytes(rank) - before, peak_bytes(rank) - before};
}

}  // namespace piper::nn::testing
