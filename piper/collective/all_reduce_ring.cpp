#include <piper/collective/all_reduce_ring.h>
#include <piper/collective/reduction.h>

namespace piper::collective {

MemberSteps all_reduce_ring(int64_t member, int64_t num_members, int64_t count) {
  Reduction reduction(member, shares_by_number(num_members, count), count);
  write_reduce_scatter_ring(reduction);
  write_all_gather_ring(reduction);
  return reduction.steps.take();
}

}  // namespace piper::collective
