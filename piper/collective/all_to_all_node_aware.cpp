#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/halo.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {
namespace {

// The members of some nodes, then of the own one. `direction` +1: place, + 1, ...; -1: place, - 1.
std::vector<int32_t> others(int64_t member, const Units& nodes, std::vector<int32_t> in_order,
                            int64_t direction) {
  in_order.push_back(nodes.unit(member));
  std::vector<int32_t> order;
  for (const int32_t node : in_order) {
    const std::span<const int32_t> members = nodes.members(node);
    const auto size = static_cast<int64_t>(members.size());
    const int64_t first = nodes.place(member) % size;
    for (int64_t i = 0; i < size; ++i) {
      const int32_t other = members[(first + direction * i + size) % size];
      if (other != member) order.push_back(other);
    }
  }
  return order;
}

}  // namespace

std::vector<int32_t> node_aware_targets(int64_t member, const Units& nodes) {
  return others(member, nodes, units_from(member, nodes), 1);
}

std::vector<int32_t> node_aware_sources(int64_t member, const Units& nodes) {
  return others(member, nodes, units_towards(member, nodes), -1);
}

MemberSteps all_to_all_node_aware(int64_t member, const Topology& topology, const CountOf& count) {
  const Units nodes(topology, 0);
  StepBuilder steps(member, num_members(topology), count);
  for (const int32_t from : node_aware_sources(member, nodes)) steps.receive_row(from);
  for (const int32_t to : node_aware_targets(member, nodes)) steps.send_row(to);
  steps.copy_own_row();
  return steps.take();
}

}  // namespace piper::collective
