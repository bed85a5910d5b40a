// Copies of experts (balance/expert_placement.h) in a step: before a layer's first forward each
// home sends its weights to the ranks that hold a copy, and behind its last backward these send it
// their gradients, which it adds to its own. The homes alone are reduced over their replicas,
// updated and saved.
//
//   weights updated (gathered) --> copied weights --> forward, backward, ... --> copied gradients
//                                                                       --> expert gradients
//
// So a copy has no optimizer state, and may be of another expert in the next step: that costs
// nothing but what every step costs. (FasterMoE, He et al. 2022, calls such copies shadows;
// DeepSeek's EPLB has redundant experts, whose gradients nobody has to sum in inference.)
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/collective/expert_copies.h>
#include <piper/schedule/step.h>

#include <array>
#include <cstdint>
#include <vector>

namespace piper::schedule {

// Whether a collective of this segment moves copies' weights or gradients.
constexpr bool is_of_copies(SegmentKind kind) {
  return kind == SegmentKind::kCopiedWeights || kind == SegmentKind::kCopiedGradients;
}

// The two tensors of a layer have `elements` each an expert (migration.h: expert_tensors), and lie
// one after the other in the homes' buffer and in the copies'. Blocks ascend by expert, then
// holder. Members are ranks of the expert group. Requires placement.has_homes_first().
std::vector<collective::CopiedBlock> copied_blocks(const balance::ExpertPlacement& placement,
                                                   const std::array<int64_t, 2>& elements);
collective::CopiedBuffers copied_buffers(const balance::ExpertPlacement& placement,
                                         const std::array<int64_t, 2>& elements);

}  // namespace piper::schedule
