// Chunks of a mixture layer's rows (strategy::has_chunks): which tokens each one holds, or which
// ranks its rows go to.
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

// Returns into how many chunks a micro-batch's rows on a rank are cut; 1: they are not.
constexpr int64_t num_moe_chunks(const Strategy& s) {
  return has_chunks(s.moe_schedule) ? s.moe_chunks : 1;
}

// Where a layer's rows are cut into groups of peers: the members of an expert group, else 0. The
// `index`-th chunk of member i then goes to the members i + d (mod the group's size), for the
// distances d of token_chunk(size, chunks, index). What stays on the rank is in the first.
constexpr int64_t grouped_peers(const Strategy& s) {
  return traits(s.moe_schedule).groups_peers && num_moe_chunks(s) > 1 ? s.mesh.ep : 0;
}

// Whether what member `from` of so many sends to `to` is in the chunk.
constexpr bool is_in_group(int64_t peers, const TokenChunk& distances, int64_t from, int64_t to) {
  const int64_t distance = (to - from + peers) % peers;
  return distance >= distances.first && distance < distances.first + distances.count;
}

}  // namespace piper::strategy
