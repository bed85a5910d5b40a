#include <piper/collective/all_gather_ring.h>
#include <piper/collective/reduction.h>

namespace piper::collective {

void write_all_gather_ring(Reduction& reduction) {
  StepBuilder& steps = reduction.steps;
  const int64_t n = reduction.num_members(), member = steps.member();
  After here = reduction.ready;
  for (int64_t round = 1; round < n; ++round) {
    const int64_t leaving = (member - round + 1 + n) % n, arriving = (member - round + n) % n;
    const auto part = static_cast<uint32_t>(n + round);  // behind those of a reduce-scatter
    steps.set_round(part);
    steps.send((member + 1) % n, part, reduction.shares[leaving], here);
    const int32_t received = steps.receive((member - 1 + n) % n, part, reduction.shares[arriving],
                                           reduction.free[arriving]);
    here.clear();
    wait_for(here, received);
  }
}

MemberSteps all_gather_ring(int64_t member, int64_t num_members, int64_t count) {
  Reduction reduction(member, shares_by_number(num_members, count), count);
  write_all_gather_ring(reduction);
  return reduction.steps.take();
}

}  // namespace piper::collective
