// The cost of one message or collective by its size.
#pragma once

namespace piper::cluster {

// T(n) = alpha + beta * n
struct AlphaBeta {
  double latency_seconds = 0;   // alpha
  double bytes_per_second = 0;  // 1 / beta
  double seconds(double bytes) const { return latency_seconds + bytes / bytes_per_second; }
};

}  // namespace piper::cluster
