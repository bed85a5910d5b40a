// How the weights of experts travel as residuals (Strategy::expert_compression).
//
// The ranks that hold an expert alike (edp) have its weights as they were last told. A rank that
// updates a share of them sends, of every block of elements, the few that are now farthest from
// that, as they are: a value and its place in the block, a byte. Everyone puts them in, the owner
// as well, so that all compute with the same weights; what was not sent stays a residual of the
// owner's, and its turn comes.
//
// HybridEP (Yang et al. 2025, section IV-B) compresses the distance to a shared expert, the mean of
// all, which it sums over all ranks in every step; what was last told needs no sum and no memory.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::strategy {

struct ResidualCode {
  int64_t block = 0;        // elements of one, a power of two
  int64_t kept = 0;         // of a block, at least 1
  int64_t value_bytes = 0;  // of an element

  // Returns the bytes in which a share (a multiple of the block) is sent: values, then places,
  // padded to eight bytes.
  int64_t bytes_of(int64_t elements) const;
};

// One element of a block of 256 in bf16.
constexpr int64_t kMostExpertCompression = 170;
// At most so many elements, and no block smaller.
constexpr int64_t kMostBlock = 256, kLeastBlock = 16;

inline bool compresses_experts(const Strategy& s) { return s.expert_compression > 1; }
// Returns about what part of experts' updated weights is sent: a block may take a little less.
inline double sent_part(const Strategy& s) { return 1 / static_cast<double>(s.expert_compression); }

// Returns the code of a buffer of so many elements, which edp ranks divide. The block is the
// largest that divides every share; 0 where there is none. `kept` is as many as the compression
// leaves room for, and one where it leaves none (contradictions() refuses it).
ResidualCode residual_code(const Strategy& s, int64_t elements, int64_t value_bytes);
// The most that a block can be compressed.
inline int64_t most_compression(const ResidualCode& code) {
  return code.block * code.value_bytes / (code.value_bytes + 1);
}

}  // namespace piper::strategy
