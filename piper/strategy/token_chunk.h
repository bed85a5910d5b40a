// Chunks of a mixture layer's tokens (strategy::has_chunks): which tokens each one holds.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::strategy {

// Consecutive ones of a rank's tokens (or of anything that is cut alike).
struct TokenChunk {
  int64_t first = 0, count = 0;
};

// The `index`-th of `chunks` nearly equal ones, from 0.
constexpr TokenChunk token_chunk(int64_t tokens, int64_t chunks, int64_t index) {
  const int64_t first = tokens * index / chunks;
  return {first, tokens * (index + 1) / chunks - first};
}

// Of a micro-batch's tokens on a rank; 1: they are not cut.
constexpr int64_t num_moe_chunks(const Strategy& s) {
  return has_chunks(s.moe_schedule) ? s.moe_chunks : 1;
}

}  // namespace piper::strategy
