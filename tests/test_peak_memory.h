// How much memory a piece of a test took at most.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace piper::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // freed memory is kept in quarantine, and everything is slower
#else
constexpr bool kSanitized = false;
#endif

// Peak resident memory of this process since the last reset (Linux, proc(5)).
inline int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kib = 0; word == "VmHWM:" && status >> kib) return kib;
  return 0;
}
inline void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

}  // namespace piper::testing
