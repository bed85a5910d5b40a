#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_two_d.h>
#include <piper/collective/staged_exchange.h>

namespace piper::collective {
namespace {

// All members for whom `carrier` carries the rows of its node, itself included, node by node.
std::vector<int32_t> carried_for(int64_t carrier, const Units& nodes) {
  std::vector<int32_t> targets;
  for (int64_t node = 0; node < nodes.num_units(); ++node)
    for (const int32_t target : nodes.speaking_to(carrier, node)) targets.push_back(target);
  return targets;
}

Stage inside(int64_t member, const Units& nodes) {
  Stage stage;
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  const std::vector<int32_t> targets = carried_for(member, nodes);
  for (const int32_t from : unit_sources(member, nodes))
    stage.in.push_back({from, {from}, targets});
  for (const int32_t to : unit_targets(member, nodes))
    stage.out.push_back({to, own, carried_for(to, nodes)});
  return stage;
}

std::vector<int32_t> node_of(int64_t member, const Units& nodes) {
  const std::span<const int32_t> node = nodes.members(nodes.unit(member));
  return {node.begin(), node.end()};
}

Stage beyond(int64_t member, const Units& nodes) {
  Stage stage;
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  for (const int32_t node : units_towards(member, nodes)) {
    const int32_t carrier = nodes.counterpart(member, node);
    stage.in.push_back({carrier, node_of(carrier, nodes), own});
  }
  for (const int32_t node : units_from(member, nodes))
    for (const int32_t target : nodes.speaking_to(member, node))
      stage.out.push_back({target, node_of(member, nodes), {target}});
  return stage;
}

}  // namespace

MemberSteps all_to_all_two_d(int64_t member, const Topology& topology, const CountOf& count) {
  const Units nodes(topology, 0);
  if (nodes.num_units() == 1) return all_to_all_node_aware(member, topology, count);
  return staged_exchange(member, num_members(topology), count,
                         {.stages{inside(member, nodes), beyond(member, nodes)}});
}

std::vector<int32_t> two_d_counts_told(int64_t from, int64_t to, const Units& nodes) {
  if (nodes.together(from, to)) return carried_for(to, nodes);
  return {static_cast<int32_t>(to)};
}

}  // namespace piper::collective
