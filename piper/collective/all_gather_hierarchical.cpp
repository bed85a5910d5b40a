#include <piper/collective/all_gather_hierarchical.h>
#include <piper/collective/halo.h>
#include <piper/collective/reduction.h>

namespace piper::collective {
namespace {

// Parts of a pair are the owners of the shares, behind those of a reduce-scatter.
uint32_t part_of(const Reduction& reduction, int64_t owner) {
  return static_cast<uint32_t>(reduction.num_members() + owner);
}

constexpr int64_t kRound = 2;  // behind those of a reduce-scatter

}  // namespace

void write_all_gather_hierarchical(Reduction& reduction, const Units& nodes) {
  StepBuilder& steps = reduction.steps;
  const int64_t member = steps.member();
  const auto receive = [&](int64_t from, int64_t owner) {
    steps.set_round(owner == from ? kRound : kRound + 1);
    return steps.receive(from, part_of(reduction, owner), reduction.shares[owner],
                         reduction.free[owner]);
  };
  steps.set_round(kRound);
  for (const int32_t node : units_from(member, nodes))
    steps.send(nodes.counterpart(member, node), part_of(reduction, member), reduction.own(),
               reduction.ready);
  for (const int32_t to : unit_targets(member, nodes))
    steps.send(to, part_of(reduction, member), reduction.own(), reduction.ready);
  for (const int32_t from : unit_sources(member, nodes)) {
    receive(from, from);
    for (const int32_t owner : halo_sources(from, nodes)) receive(from, owner);
  }
  for (const int32_t owner : halo_sources(member, nodes)) {
    After after;
    wait_for(after, receive(owner, owner));
    steps.set_round(kRound + 1);
    for (const int32_t to : unit_targets(member, nodes))
      steps.send(to, part_of(reduction, owner), reduction.shares[owner], after);
  }
}

MemberSteps all_gather_hierarchical(int64_t member, const Topology& topology, int64_t count) {
  const Units nodes(topology, 0);
  Reduction reduction(member, shares_by_number(nodes.num_members(), count), count);
  write_all_gather_hierarchical(reduction, nodes);
  return reduction.steps.take();
}

}  // namespace piper::collective
