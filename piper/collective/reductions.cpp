#include <piper/base/error.h>
#include <piper/collective/all_gather_direct.h>
#include <piper/collective/all_gather_hierarchical.h>
#include <piper/collective/all_gather_ring.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/collective/all_reduce_ring.h>
#include <piper/collective/reduce_scatter_direct.h>
#include <piper/collective/reduce_scatter_hierarchical.h>
#include <piper/collective/reduce_scatter_ring.h>
#include <piper/collective/reductions.h>

namespace piper::collective {

const char* name(ReductionForm form) {
  switch (form) {
    case ReductionForm::kDirect:
      return "direct";
    case ReductionForm::kRing:
      return "ring";
    case ReductionForm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

MemberSteps reduce_scatter(ReductionForm form, int64_t member, const Topology& topology,
                           int64_t count) {
  switch (form) {
    case ReductionForm::kDirect:
      return reduce_scatter_direct(member, num_members(topology), count);
    case ReductionForm::kRing:
      return reduce_scatter_ring(member, num_members(topology), count);
    case ReductionForm::kHierarchical:
      return reduce_scatter_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "a form that is not in the list");
  return {};
}

MemberSteps all_gather(ReductionForm form, int64_t member, const Topology& topology,
                       int64_t count) {
  switch (form) {
    case ReductionForm::kDirect:
      return all_gather_direct(member, num_members(topology), count);
    case ReductionForm::kRing:
      return all_gather_ring(member, num_members(topology), count);
    case ReductionForm::kHierarchical:
      return all_gather_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "a form that is not in the list");
  return {};
}

MemberSteps all_reduce(ReductionForm form, int64_t member, const Topology& topology,
                       int64_t count) {
  switch (form) {
    case ReductionForm::kDirect:
      return all_reduce_direct(member, num_members(topology), count);
    case ReductionForm::kRing:
      return all_reduce_ring(member, num_members(topology), count);
    case ReductionForm::kHierarchical:
      return all_reduce_hierarchical(member, topology, count);
  }
  PIPER_CHECK(false, "a form that is not in the list");
  return {};
}

}  // namespace piper::collective
