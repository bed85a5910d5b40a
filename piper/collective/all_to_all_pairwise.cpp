#include <piper/collective/all_to_all_pairwise.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {

MemberSteps all_to_all_pairwise(int64_t member, const Topology& topology, const CountOf& count) {
  const int64_t n = num_members(topology);
  StepBuilder steps(member, n, count);
  steps.copy_own_row();
  After before;  // the round before
  for (int64_t round = 1; round < n; ++round) {
    steps.set_round(round);
    const int32_t received = steps.receive_row((member - round + n) % n, before);
    const int32_t sent = steps.send_row((member + round) % n, before);
    if (received < 0 && sent < 0) continue;
    before.clear();
    wait_for(before, received);
    wait_for(before, sent);
  }
  return steps.take();
}

}  // namespace piper::collective
