// What the environment says to tests written in C++, and what they say when they cannot run.
//
//   PIPER_FULL_COUNTS=1   every promised figure in full; without it, the shortened count that runs on every change
//
// Only tests include this header.
#pragma once

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace piper::testing {

// The repetitions of a test that has a promised number of them.
struct Repetitions {
  int64_t usual = 1;  // on every change
  int64_t full = 1;   // what is promised
};

inline bool full_counts() {
  const char* given = std::getenv("PIPER_FULL_COUNTS");
  return given != nullptr && std::string_view(given) == "1";
}

inline int64_t repetitions(const Repetitions& r) { return full_counts() ? r.full : r.usual; }

// Says on one line that the running test case lacks something. scripts/test counts these lines, and
// its strict form compares them with a list of what may be missing. The caller returns afterwards.
inline void skip_case(std::string_view reason) {
  fmt::print("SKIPPED CASE: {}: {}\n", doctest::getContextOptions()->currentTest->m_name, reason);
}

}  // namespace piper::testing
