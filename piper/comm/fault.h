// Whose fault a failure is. It decides by which error, and so by which exit code, the processes
// that hear of it end: all as the one that found it.
#pragma once

#include <cstdint>

namespace piper::comm {

enum class Fault : uint8_t {
  kRun,    // a rank, a machine or a network failed: CommError
  kInput,  // what the user gave is wrong: InvalidInput
};
inline constexpr int kNumFaults = 2;

}  // namespace piper::comm
