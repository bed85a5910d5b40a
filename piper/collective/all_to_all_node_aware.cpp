#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/step_writer.h>

namespace piper::collective {
namespace {

// `direction` +1: node + 1, + 2, ...; -1: node - 1, - 2, ... and last the own node.
std::vector<int32_t> others(int64_t member, const Units& nodes, int64_t direction) {
  std::vector<int32_t> order;
  const int64_t num_nodes = nodes.num_units(), own = nodes.unit(member);
  for (int64_t distance = 1; distance <= num_nodes; ++distance) {
    const int64_t node = (own + direction * distance + num_nodes) % num_nodes;
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
  return others(member, nodes, 1);
}

std::vector<int32_t> node_aware_sources(int64_t member, const Units& nodes) {
  return others(member, nodes, -1);
}

MemberSteps all_to_all_node_aware(int64_t member, const Topology& topology, const CountOf& count) {
  const Units nodes(topology, 0);
  StepWriter writer(member, num_members(topology), count);
  for (const int32_t from : node_aware_sources(member, nodes)) writer.receive_row(from);
  for (const int32_t to : node_aware_targets(member, nodes)) writer.send_row(to);
  writer.copy_own_row();
  return writer.take();
}

}  // namespace piper::collective
