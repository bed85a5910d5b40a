#include <piper/base/error.h>
#include <piper/collective/all_gather_direct.h>
#include <piper/collective/all_gather_hierarchical.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/collective/reduce_scatter_direct.h>
#include <piper/collective/reduce_scatter_hierarchical.h>
#include <piper/collective/reductions.h>

namespace piper::collective {

const char* name(ReductionAlgorithm algorithm) {
  switch (algorithm) {
    case ReductionAlgorithm::kDirect:
      return "direct";
    case ReductionAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

ReductionAlgorithm algorithm_of(strategy::Reduction reduction) {
  return reduction == strategy::Reduction::kHierarchical ? ReductionAlgorithm::kHierarchical
                                                         : ReductionAlgorithm::kDirect;
}

MemberSteps reduce_scatter(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                           int64_t count) {
  switch (algorithm) {
    case ReductionAlgorithm::kDirect:
      return reduce_scatter_direct(member, num_members(topology), count);
    case ReductionAlgorithm::kHierarchical:
      return reduce_scatter_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "an algorithm that is not in the list");
  return {};
}

MemberSteps all_gather(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                       int64_t count) {
  switch (algorithm) {
    case ReductionAlgorithm::kDirect:
      return all_gather_direct(member, num_members(topology), count);
    case ReductionAlgorithm::kHierarchical:
      return all_gather_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "an algorithm that is not in the list");
  return {};
}

MemberSteps all_reduce(ReductionAlgorithm algorithm, int64_t member, const Topology& topology,
                       int64_t count) {
  switch (algorithm) {
    case ReductionAlgorithm::kDirect:
      return all_reduce_direct(member, num_members(topology), count);
    case ReductionAlgorithm::kHierarchical:
      return all_reduce_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "an algorithm that is not in the list");
  return {};
}

}  // namespace piper::collective
