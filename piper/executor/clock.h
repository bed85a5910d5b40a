// The clock of measurements.
#pragma once

#include <chrono>

namespace piper::executor {

// Seconds of the steady clock: the common time of all ranks of a host.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace piper::executor
