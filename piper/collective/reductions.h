// The closed list of forms in which a reduction is executed, and one function for each reduction
// that writes any of them. Gradients cross the same network as tokens.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <array>
#include <cstdint>

namespace piper::collective {

enum class ReductionForm : uint8_t {
  kDirect,       // everyone to every owner, added by ascending member
  kRing,         // from neighbour to neighbour
  kHierarchical  // inside the nodes first
};
inline constexpr std::array kReductionForms{ReductionForm::kDirect, ReductionForm::kRing,
                                            ReductionForm::kHierarchical};
const char* name(ReductionForm form);  // "direct", "ring", "hierarchical"

// In place in the output, in units of elements: reduction.h says what is where. Only kHierarchical
// reads more of the topology than the number of members.
MemberSteps reduce_scatter(ReductionForm form, int64_t member, const Topology& topology,
                           int64_t count);
MemberSteps all_gather(ReductionForm form, int64_t member, const Topology& topology, int64_t count);
MemberSteps all_reduce(ReductionForm form, int64_t member, const Topology& topology, int64_t count);

}  // namespace piper::collective
