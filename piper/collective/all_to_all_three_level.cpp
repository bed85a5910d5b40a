#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_three_level.h>
#include <piper/collective/staged_exchange.h>

#include <algorithm>

namespace piper::collective {
namespace {

// The other nodes of the member's group, in its order of sending.
std::vector<int32_t> other_nodes(int64_t member, const NodesInGroups& where) {
  const std::span<const int32_t> nodes = where.nodes_of(where.groups().unit(member));
  std::vector<int32_t> order = to_vector(nodes);
  const auto own = std::find(order.begin(), order.end(), where.nodes().unit(member));
  std::rotate(order.begin(), own + 1, order.end());
  order.pop_back();
  return order;
}

// Whose rows `member` has in stage 2: its own, and those that it took in.
std::vector<int32_t> held(int64_t member, const NodesInGroups& where) {
  std::vector<int32_t> sources = where.taken_from(member);
  sources.insert(std::lower_bound(sources.begin(), sources.end(), member),
                 static_cast<int32_t>(member));
  return sources;
}

Stage to_groups(int64_t member, const NodesInGroups& where) {
  Stage stage;
  const Units& groups = where.groups();
  const std::vector<int32_t> own_group = to_vector(groups.members(groups.unit(member)));
  for (const int32_t source : where.taken_from(member))
    stage.in.push_back({source, {source}, own_group});
  for (const int32_t group : units_from(member, groups))
    stage.out.push_back({where.taker(member, group),
                         {static_cast<int32_t>(member)},
                         to_vector(groups.members(group))});
  return stage;
}

Stage to_nodes(int64_t member, const NodesInGroups& where) {
  Stage stage;
  const Units& nodes = where.nodes();
  const std::vector<int32_t> own_node = to_vector(nodes.members(nodes.unit(member)));
  const std::vector<int32_t> sources = held(member, where);
  for (const int32_t node : other_nodes(member, where)) {
    for (const int32_t from : nodes.speaking_to(member, node))
      stage.in.push_back({from, held(from, where), own_node});
    stage.out.push_back({nodes.counterpart(member, node), sources, to_vector(nodes.members(node))});
  }
  return stage;
}

// Whose rows `member` hands on inside its node.
std::vector<int32_t> handed_on(int64_t member, const NodesInGroups& where) {
  std::vector<int32_t> sources = where.taken_from(member);
  for (const int32_t node : other_nodes(member, where))
    for (const int32_t from : where.nodes().speaking_to(member, node)) {
      const std::vector<int32_t> more = held(from, where);
      sources.insert(sources.end(), more.begin(), more.end());
    }
  std::sort(sources.begin(), sources.end());
  return sources;
}

Stage to_members(int64_t member, const NodesInGroups& where) {
  Stage stage;
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  const std::vector<int32_t> sources = handed_on(member, where);
  for (const int32_t from : unit_sources(member, where.nodes()))
    stage.in.push_back({from, handed_on(from, where), own});
  for (const int32_t to : unit_targets(member, where.nodes()))
    stage.out.push_back({to, sources, {to}});
  return stage;
}

}  // namespace

NodesInGroups::NodesInGroups(const Topology& topology)
    : nodes_(topology, 0),
      groups_(topology, 1),
      nodes_of_(groups_.num_units()),
      index_(nodes_.num_units()) {
  for (int64_t node = 0; node < nodes_.num_units(); ++node) {
    std::vector<int32_t>& group = nodes_of_[groups_.unit(nodes_.members(node).front())];
    index_[node] = static_cast<int32_t>(group.size());
    group.push_back(static_cast<int32_t>(node));
  }
}

int32_t NodesInGroups::taker(int64_t member, int64_t group) const {
  const std::vector<int32_t>& there = nodes_of_[group];
  return nodes_.counterpart(member, there[index_[nodes_.unit(member)] % there.size()]);
}

std::vector<int32_t> NodesInGroups::taken_from(int64_t member) const {
  std::vector<int32_t> sources;
  const int32_t own = groups_.unit(member);
  const size_t step = nodes_of_[own].size();
  for (int64_t group = 0; group < groups_.num_units(); ++group) {
    if (group == own) continue;
    const std::vector<int32_t>& there = nodes_of_[group];
    for (size_t i = index_[nodes_.unit(member)]; i < there.size(); i += step)
      for (const int32_t source : nodes_.speaking_to(member, there[i])) sources.push_back(source);
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

MemberSteps all_to_all_three_level(int64_t member, const Topology& topology, const CountOf& count,
                                   PhaseOne phase_one) {
  const NodesInGroups where(topology);
  if (where.nodes().num_units() == 1) return all_to_all_node_aware(member, topology, count);
  return staged_exchange(
      member, num_members(topology), count,
      {.stages{to_groups(member, where), to_nodes(member, where), to_members(member, where)},
       .inside = inside_unit(member, where.nodes()),
       .phase_one = phase_one});
}

std::vector<int32_t> three_level_counts_told(int64_t from, int64_t to, const NodesInGroups& where) {
  const Units& nodes = where.nodes();
  const Units& groups = where.groups();
  int64_t holder = from;
  if (!groups.together(from, to)) {
    holder = where.taker(from, groups.unit(to));
    if (holder == to) return to_vector(groups.members(groups.unit(to)));
  }
  if (!nodes.together(holder, to) && nodes.counterpart(holder, nodes.unit(to)) == to)
    return to_vector(nodes.members(nodes.unit(to)));
  return {static_cast<int32_t>(to)};
}

}  // namespace piper::collective
