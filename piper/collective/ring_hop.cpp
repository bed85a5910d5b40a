#include <piper/base/error.h>
#include <piper/collective/ring_hop.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {

MemberSteps ring_hop(int64_t member, int64_t num_members, int64_t count) {
  PIPER_CHECK(num_members > 1 && member >= 0 && member < num_members, "no ring of one member");
  StepBuilder steps(member, count, count);
  const int64_t before = (member + num_members - 1) % num_members;
  steps.send((member + 1) % num_members, 0, {Buffer::kInput, 0, count});
  steps.receive(before, 0, {Buffer::kOutput, 0, count});
  return steps.take();
}

}  // namespace piper::collective
