// Two published hashes of 64 bits. What is drawn and named by them is kept in files and compared
// between machines, so their values never change.
#pragma once

#include <cstdint>
#include <string_view>

namespace piper {

// What SplitMix64 adds to its state for each number (Steele, Lea, Flood 2014).
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

// The number that SplitMix64 draws from this state. Every input bit flips half of the output bits,
// so it also mixes words that are no such state.
constexpr uint64_t splitmix64(uint64_t state) {
  uint64_t z = state + kSplitMixStep;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// FNV-1a (Fowler, Noll, Vo): a fingerprint, not a defence.
constexpr uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace piper
