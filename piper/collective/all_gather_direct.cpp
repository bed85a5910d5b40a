#include <piper/collective/all_gather_direct.h>
#include <piper/collective/reduction.h>

namespace piper::collective {

MemberSteps all_gather_direct(int64_t member, int64_t num_members, int64_t count) {
  const int64_t n = num_members;
  Reduction reduction(member, shares_by_number(n, count), count);
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t from = (member - distance + n) % n;
    reduction.steps.receive(from, 0, reduction.shares[from]);
  }
  for (int64_t distance = 1; distance < n; ++distance)
    reduction.steps.send((member + distance) % n, 0, reduction.own());
  return reduction.steps.take();
}

}  // namespace piper::collective
