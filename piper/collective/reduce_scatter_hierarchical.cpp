#include <piper/collective/halo.h>
#include <piper/collective/reduce_scatter_hierarchical.h>
#include <piper/collective/reduction.h>

#include <algorithm>

namespace piper::collective {
namespace {

// Shares that lie next to each other.
struct Carried {
  Block block;
  std::vector<int32_t> owners;
};

std::vector<Carried> carried_by(int64_t carrier, const Reduction& reduction, const Units& nodes) {
  std::vector<int32_t> owners;
  for (int64_t node = 0; node < nodes.num_units(); ++node)
    for (const int32_t owner : nodes.speaking_to(carrier, node)) owners.push_back(owner);
  std::sort(owners.begin(), owners.end(), [&](int32_t a, int32_t b) {
    return std::pair{reduction.shares[a].offset, a} < std::pair{reduction.shares[b].offset, b};
  });
  std::vector<Carried> runs;
  for (const int32_t owner : owners) {
    const Block& share = reduction.shares[owner];
    if (runs.empty() || runs.back().block.offset + runs.back().block.count != share.offset)
      runs.push_back({{Buffer::kOutput, share.offset, 0}, {}});
    runs.back().block.count += share.count;
    runs.back().owners.push_back(owner);
  }
  return runs;
}

// Stage 1: sends this member's values to those who carry them.
void send_inside(Reduction& reduction, const Units& nodes) {
  for (const int32_t carrier : unit_targets(reduction.steps.member(), nodes)) {
    uint32_t part = 0;
    for (const Carried& run : carried_by(carrier, reduction, nodes)) {
      const int32_t sent = reduction.steps.send(carrier, part++, run.block);
      for (const int32_t owner : run.owners) wait_for(reduction.free[owner], sent);
    }
  }
}

// Stage 1: adds the node's values of one run; the step after which they are its sum.
int32_t add_node(Reduction& reduction, const Units& nodes, const Carried& run, uint32_t part) {
  StepBuilder& steps = reduction.steps;
  const std::span<const int32_t> node = nodes.members(nodes.unit(steps.member()));
  std::vector<SumTerm> terms(node.size());
  for (size_t i = 0; i < node.size(); ++i) {
    const bool is_own = node[i] == steps.member();
    terms[i].block = is_own ? run.block : steps.scratch(run.block.count);
    if (!is_own) terms[i].step = steps.receive(node[i], part, terms[i].block);
  }
  return add_in_order(steps, terms, nodes.place(steps.member()));
}

// Stage 2: adds the nodes' sums of the own share, whose own node's sum is there after `step`.
void add_nodes(Reduction& reduction, const Units& nodes, int32_t step) {
  StepBuilder& steps = reduction.steps;
  const int32_t own_node = nodes.unit(steps.member());
  std::vector<SumTerm> terms(nodes.num_units());
  for (int64_t node = 0; node < nodes.num_units(); ++node) {
    if (node == own_node) {
      terms[node] = {reduction.own(), step};
      continue;
    }
    terms[node].block = steps.scratch(reduction.own().count);
    terms[node].step = steps.receive(nodes.counterpart(steps.member(), node), 0, terms[node].block);
  }
  const int32_t last = add_in_order(steps, terms, own_node);
  wait_for(reduction.ready, last >= 0 ? last : step);
}

}  // namespace

void write_reduce_scatter_hierarchical(Reduction& reduction, const Units& nodes) {
  const int64_t member = reduction.steps.member();
  reduction.steps.set_round(0);
  send_inside(reduction, nodes);
  uint32_t part = 0;
  int32_t own_step = -1;
  for (const Carried& run : carried_by(member, reduction, nodes)) {
    reduction.steps.set_round(0);
    const int32_t added = add_node(reduction, nodes, run, part++);
    reduction.steps.set_round(1);
    for (const int32_t owner : run.owners) {
      if (owner == member) {
        own_step = added;
        continue;
      }
      After after;
      wait_for(after, added);
      const int32_t sent = reduction.steps.send(owner, 0, reduction.shares[owner], after);
      wait_for(reduction.free[owner], sent);
    }
  }
  reduction.steps.set_round(1);
  add_nodes(reduction, nodes, own_step);
}

MemberSteps reduce_scatter_hierarchical(int64_t member, const Topology& topology, int64_t count) {
  const Units nodes(topology, 0);
  Reduction reduction(member, shares_by_number(nodes.num_members(), count), count);
  write_reduce_scatter_hierarchical(reduction, nodes);
  return reduction.steps.take();
}

}  // namespace piper::collective
