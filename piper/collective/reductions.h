// The closed list of algorithms by which a reduction is executed, and one function for each
// reduction that writes any of them. Gradients cross the same network as tokens.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>

namespace piper::collective {

enum class ReductionAlgorithm : uint8_t {
  kDirect,       // everyone to every owner, added by ascending member
  kHierarchical  // inside the nodes first
};
inline constexpr std::array kReductionAlgorithms{ReductionAlgorithm::kDirect,
                                                 ReductionAlgorithm::kHierarchical};
const char* name(ReductionAlgorithm algorithm);  // "direct", "hierarchical"
// By which a strategy's gradients are summed.
ReductionAlgorithm algorithm_of(strategy::Reduction reduction);

// In place in the output, in units of elements: reduction.h says what is where. Only kHierarchical
// reads more of the topology than the number of members.
MemberSteps reduce_scatter(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                           int64_t count);
MemberSteps all_gather(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                       int64_t count);
MemberSteps all_reduce(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                       int64_t count);

}  // namespace piper::collective
