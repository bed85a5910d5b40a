#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/staged_exchange.h>

namespace piper::collective {
namespace {

// Between counterparts.
Stage phase_two(int64_t member, const Units& nodes) {
  Stage stage{.always_packs = true, .always_unpacks = true};
  const std::vector<int32_t> own_node = to_vector(nodes.members(nodes.unit(member)));
  for (const int32_t source : halo_sources(member, nodes))
    stage.in.push_back({source, {source}, own_node});
  for (const int32_t node : units_from(member, nodes))
    stage.out.push_back({nodes.counterpart(member, node),
                         {static_cast<int32_t>(member)},
                         to_vector(nodes.members(node))});
  return stage;
}

// Inside the node, the member's own share included: an all-to-all copies it, too.
Stage phase_three(int64_t member, const Units& nodes) {
  Stage stage{.waits_for_all = true, .always_packs = true, .always_unpacks = true};
  const std::vector<int32_t> taken_in = halo_sources(member, nodes);
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  for (const int32_t from : unit_sources(member, nodes))
    stage.in.push_back({from, halo_sources(from, nodes), own});
  for (const int32_t to : unit_targets(member, nodes)) stage.out.push_back({to, taken_in, {to}});
  stage.out.push_back({member, taken_in, own});
  return stage;
}

}  // namespace

MemberSteps all_to_all_halo_printed(int64_t member, const Topology& topology, const CountOf& count,
                                    PhaseOne phase_one) {
  const Units nodes(topology, 0);
  if (nodes.num_units() == 1) return all_to_all_node_aware(member, topology, count);
  StagedExchange exchange{.stages{phase_two(member, nodes), phase_three(member, nodes)},
                          .inside = inside_unit(member, nodes),
                          .phase_one = phase_one};
  const std::vector<int32_t> own{static_cast<int32_t>(member)};
  exchange.inside.out.push_back({member, own, own});
  exchange.inside.always_unpacks = true;  // P1
  return staged_exchange(member, num_members(topology), count, exchange);
}

}  // namespace piper::collective
