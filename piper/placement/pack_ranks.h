// The packing of place_ranks.h: blocks of ranks into units, from the outside in.
#pragma once

#include <piper/placement/placement_price.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace piper::placement {

// [level][rank]: the block of a rank; level 0 is the rank alone, each further level joins what the
// next lighter axis ties together. Numbered in the order of ranks.
std::vector<std::vector<int32_t>> rank_blocks(std::span<const RankGroup> groups, int32_t num_ranks);

// Which of the units that a block fits into takes it. Among equal ones it is the one of fewest
// nodes, then the first.
enum class PackRule : uint8_t {
  // where most of its kin are (same block one level up, then two, ...), then the emptiest
  kTogetherRoomy,
  kTogetherTight,  // the same, then the one that it fills best
  kTight,          // the one that it fills best
  kFirst           // the first
};
inline constexpr std::array kPackRules{PackRule::kTogetherRoomy, PackRule::kTogetherTight,
                                       PackRule::kTight, PackRule::kFirst};

RankSlots pack_ranks(const Slots& slots, const std::vector<std::vector<int32_t>>& blocks,
                     PackRule rule);

}  // namespace piper::placement
