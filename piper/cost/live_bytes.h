// Live bytes over a sequence of allocations and releases, and how such sequences are strung
// together without simulating them again: 60 equal layers cost as much as one.
#pragma once

#include <algorithm>
#include <cstdint>

namespace piper::cost {

// A stretch of execution: what it leaves behind, and the most that it held on the way, both
// relative to what was live when it began.
struct Stretch {
  int64_t net = 0;
  int64_t peak = 0;

  void allocate(int64_t bytes) {
    net += bytes;
    peak = std::max(peak, net);
  }
  void release(int64_t bytes) { net -= bytes; }
  // Runs a task that needs `bytes` above what is live.
  void touch(int64_t bytes) { peak = std::max(peak, net + bytes); }
  void append(const Stretch& next) {
    peak = std::max(peak, net + next.peak);
    net += next.net;
  }
};

}  // namespace piper::cost
