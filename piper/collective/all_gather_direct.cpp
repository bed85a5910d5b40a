#include <piper/collective/all_gather_direct.h>
#include <piper/collective/reduction.h>

namespace piper::collective {

namespace {

MemberSteps gather(Reduction reduction) {
  const int64_t n = reduction.num_members(), member = reduction.steps.member();
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t from = (member - distance + n) % n;
    reduction.steps.receive(from, 0, reduction.shares[from]);
  }
  for (int64_t distance = 1; distance < n; ++distance)
    reduction.steps.send((member + distance) % n, 0, reduction.own());
  return reduction.steps.take();
}

}  // namespace

MemberSteps all_gather_direct(int64_t member, int64_t num_members, int64_t count) {
  return gather({member, shares_by_number(num_members, count), count});
}

MemberSteps all_gather_direct(int64_t member, std::span<const int64_t> counts) {
  return gather({member, shares_of(counts), sum_of(counts)});
}

}  // namespace piper::collective
