// Exact bytes of tensor storage by rank: a wrapper of libtorch's CPU allocator that notes the
// allocating rank (a thread-local) and gives the bytes back to that same rank, whichever thread
// frees them.
//
// What counts is the size libtorch asks for (elements x element size): no rounding, and nothing
// that the library of a matrix product takes for itself (product.cpp). Storage is aligned to 64
// bytes as libtorch's own. Large blocks are kept for the next taker (block_cache.h), uncounted.
// What threads without a rank allocate counts for nobody.
//
// The allocator is libtorch's, so it is one per process. Thread-safe.
#pragma once

#include <piper/base/strong_id.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace piper::nn {

inline constexpr int32_t kMaxCountedRanks = 1024;

// Puts the wrapper in place for the rest of the process; again does nothing. Tensors that exist
// already stay uncounted.
void install_counting_allocator();

// Thrown out of an allocation: the machine has no more, or the rank would hold more than its limit.
struct OutOfMemory : std::runtime_error {
  OutOfMemory(Rank of_rank, int64_t wanted, int64_t live, int64_t limit);
  Rank rank;  // not valid: of a thread without one
  int64_t wanted_bytes, live_bytes;
  int64_t limit_bytes;  // 0: it was the machine's memory that ended
};

// The most that a rank may hold from now on; 0 = no limit.
void set_limit(Rank rank, int64_t bytes);

// While it lives, allocations of this thread belong to the rank.
class AllocatingRank {
 public:
  explicit AllocatingRank(Rank rank);  // 0 <= rank < kMaxCountedRanks
  AllocatingRank();                    // to nobody
  ~AllocatingRank();
  AllocatingRank(const AllocatingRank&) = delete;
  AllocatingRank& operator=(const AllocatingRank&) = delete;

 private:
  int32_t before_;
};

int64_t live_bytes(Rank rank);
int64_t peak_bytes(Rank rank);  // largest live_bytes since reset_peak
void reset_peak(Rank rank);     // peak := live

}  // namespace piper::nn
