// Keeps large blocks of host memory when they are freed and hands them out again. The tapes of a
// training step are allocated anew for every micro-batch, and the system zeroes fresh pages one by
// one: 8,192 page faults for the 32 MiB tape of a mixture layer, measured at 2-8 % of that layer's
// time.
//
// Blocks below kSmallest go to the system's allocator, which keeps such pages itself. A block's
// capacity is rounded up to an eighth of its power of two, so that experts' buffers, whose sizes
// follow the routing, find each other's. At most kMostBytes are kept; the oldest go first.
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>

namespace piper::nn {

class BlockCache {
 public:
  static constexpr size_t kSmallest = size_t{1} << 20;
  static constexpr size_t kMostBytes = size_t{1} << 30;

  ~BlockCache();
  // Aligned to 64 bytes; throws what c10 throws when there is no memory. bytes > 0.
  void* take(size_t bytes);
  // `bytes` as taken.
  void give_back(void* block, size_t bytes);
  size_t kept_bytes() const;

  static size_t capacity(size_t bytes);

 private:
  struct Block {
    void* memory;
    size_t capacity;
  };
  mutable std::mutex mutex_;
  std::deque<Block> kept_;  // oldest first
  size_t kept_bytes_ = 0;
};

}  // namespace piper::nn
