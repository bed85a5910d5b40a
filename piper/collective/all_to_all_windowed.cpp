#include <piper/base/error.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_windowed.h>
#include <piper/collective/step_writer.h>

namespace piper::collective {

MemberSteps all_to_all_windowed(int64_t member, const Topology& topology, const CountOf& count,
                                int64_t window) {
  PIPER_CHECK(window >= 1, "window " + std::to_string(window));
  const Units nodes(topology, 0);
  StepWriter writer(member, num_members(topology), count);
  for (const int32_t from : node_aware_sources(member, nodes)) writer.receive_row(from);
  std::vector<int32_t> sends;
  for (const int32_t to : node_aware_targets(member, nodes)) {
    const auto before = static_cast<int64_t>(sends.size()) - window;
    const int32_t send = writer.send_row(to, before >= 0 ? After{sends[before]} : After{});
    if (send >= 0) sends.push_back(send);
  }
  writer.copy_own_row();
  return writer.take();
}

}  // namespace piper::collective
