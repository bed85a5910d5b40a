#include <piper/collective/all_to_all_naive.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {

MemberSteps all_to_all_naive(int64_t member, const Topology& topology, const CountOf& count) {
  const int64_t n = num_members(topology);
  StepBuilder steps(member, n, count);
  for (int64_t from = 0; from < n; ++from)
    if (from != member) steps.receive_row(from);
  for (int64_t to = 0; to < n; ++to)
    if (to != member) steps.send_row(to);
  steps.copy_own_row();
  return steps.take();
}

}  // namespace piper::collective
