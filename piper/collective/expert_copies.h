// Blocks that one member has at home and others hold copies of: sent to the holders, and sums of
// what the holders have made of them sent home.
//
// Weights and gradients of experts with several copies (balance/expert_placement.h). Only pairs of
// a home and a holder exchange a message; whoever has neither takes part with an empty list.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::collective {

// Units at these offsets of the home's and of the holder's buffer.
struct CopiedBlock {
  int32_t home = 0, holder = 0;  // members, never the same
  int64_t at_home = 0, at_holder = 0, count = 0;
};

// Sizes of a member's two buffers.
struct CopiedBuffers {
  int64_t homes = 0, copies = 0;
};

// Input: the homes' buffer; output: the copies', of which every block is written. `blocks`: of all
// members, in the same order for each.
MemberSteps spread_copies(int64_t member, const CopiedBuffers& buffers,
                          std::span<const CopiedBlock> blocks);

// Input: the copies' buffer; output: the homes', to whose blocks the copies' are added in the order
// of `blocks`. Scratch: two of the largest block that comes to the member, or one where one comes.
MemberSteps collect_copies(int64_t member, const CopiedBuffers& buffers,
                           std::span<const CopiedBlock> blocks);

// Units that each member sends to each, [num_members x num_members] row-major: from home, or
// `homeward`.
std::vector<int64_t> copied_units(int64_t num_members, std::span<const CopiedBlock> blocks,
                                  bool homeward);

// Units of the scratch of collect_copies().
int64_t collect_scratch(int64_t member, std::span<const CopiedBlock> blocks);

}  // namespace piper::collective
