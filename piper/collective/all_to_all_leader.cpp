#include <piper/collective/all_to_all_leader.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/staged_exchange.h>

namespace piper::collective {
namespace {

int32_t leader_of(int64_t node, const Units& nodes) { return nodes.members(node).front(); }

std::vector<int32_t> members_of(int64_t node, const Units& nodes) {
  return {nodes.members(node).begin(), nodes.members(node).end()};
}

// All members of other nodes, ascending.
std::vector<int32_t> remote(int64_t member, const Units& nodes, int64_t num_members) {
  std::vector<int32_t> others;
  for (int64_t other = 0; other < num_members; ++other)
    if (!nodes.together(member, other)) others.push_back(static_cast<int32_t>(other));
  return others;
}

std::vector<Stage> of_leader(int32_t leader, const Units& nodes, int64_t num_members) {
  const std::vector<int32_t> others = remote(leader, nodes, num_members);
  const std::vector<int32_t> own_node = members_of(nodes.unit(leader), nodes);
  std::vector<Stage> stages(3);
  for (const int32_t from : unit_sources(leader, nodes))
    stages[0].in.push_back({from, {from}, others});
  for (const int32_t node : units_towards(leader, nodes))
    stages[1].in.push_back({leader_of(node, nodes), members_of(node, nodes), own_node});
  for (const int32_t node : units_from(leader, nodes))
    stages[1].out.push_back({leader_of(node, nodes), own_node, members_of(node, nodes)});
  for (const int32_t to : unit_targets(leader, nodes)) stages[2].out.push_back({to, others, {to}});
  return stages;
}

std::vector<Stage> of_led(int32_t member, int32_t leader, const Units& nodes, int64_t num_members) {
  const std::vector<int32_t> others = remote(member, nodes, num_members);
  std::vector<Stage> stages(3);
  stages[0].out.push_back({leader, {member}, others});
  stages[2].in.push_back({leader, others, {member}});
  return stages;
}

}  // namespace

MemberSteps all_to_all_leader(int64_t member, const Topology& topology, const CountOf& count) {
  const Units nodes(topology, 0);
  if (nodes.num_units() == 1) return all_to_all_node_aware(member, topology, count);
  const int64_t n = num_members(topology);
  const auto self = static_cast<int32_t>(member);
  const int32_t leader = leader_of(nodes.unit(member), nodes);
  return staged_exchange(
      member, n, count,
      {.stages = self == leader ? of_leader(self, nodes, n) : of_led(self, leader, nodes, n),
       .inside = inside_unit(member, nodes)});
}

std::vector<int32_t> leader_counts_told(int64_t from, int64_t to, const Units& nodes) {
  if (nodes.num_units() == 1 || leader_of(nodes.unit(to), nodes) != to)
    return {static_cast<int32_t>(to)};
  if (!nodes.together(from, to)) return members_of(nodes.unit(to), nodes);
  std::vector<int32_t> targets;
  for (int64_t other = 0; other < nodes.num_members(); ++other)
    if (other == to || !nodes.together(to, other)) targets.push_back(static_cast<int32_t>(other));
  return targets;
}

}  // namespace piper::collective
