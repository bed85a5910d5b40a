#include <piper/schedule/divided_block.h>
#include <piper/schedule/moe_layer/divided_rows.h>
#include <piper/schedule/moe_layer/parm_baseline.h>
#include <piper/schedule/moe_layer/plain.h>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;
using strategy::Axis;

namespace {

// Sends rows to their experts or back. Where the trainer splits, some experts compute meanwhile.
void exchange(LayerPass& pass, const LayerKind& kind, SegmentKind whose, ComputePart share,
              const LayerSlotList& reads, const LayerSlotList& writes) {
  pass.all_to_all(kind.exchange_axis(), whose, reads, writes);
  if (kind.splits_exchange) pass.compute_part(kExperts, share);
}

}  // namespace

void write_gate(LayerProgram& p, const LayerKind& kind, LayerSlot x1, const LayerSlotList& writes) {
  LayerSlotList reads{x1};
  if (kind.shares_capacity) {
    LayerSlot choices = p.slot(kTokenChoices, kRouteOnly);
    p.forward.compute(kRouteOnly, {x1}, {choices});
    const auto gather = [&](SegmentKind segment) {
      const LayerSlot own = choices;
      choices = p.slot(kTokenChoices, segment);
      p.forward.collective(graph::TaskKind::kAllGather, segment, {own}, {choices});
    };
    if (kind.counts_choices_over_cp) gather(kContextChoices);
    if (kind.counts_choices_over_tp) gather(kTensorChoices);
    reads.push_back(choices);
  }
  p.forward.compute(kGate, reads, writes);
}

LayerSlot sum_sequence_counts(LayerProgram& p, const LayerKind& kind, LayerSlot routing) {
  LayerSlot sum = LayerSlot::none();
  const auto add = [&](Axis ranks) {
    const LayerSlot before = sum;
    sum = p.slot(kSequenceChoices, kSequenceCounts);
    p.forward.collective_of(ranks, graph::TaskKind::kAllReduce, kSequenceCounts, {routing, before},
                            {sum});
  };
  if (kind.counts_choices_over_tp) add(Axis::kTensor);
  if (kind.counts_choices_over_cp) add(Axis::kContext);
  return sum;
}

LayerSlot write_plain_mixture(LayerProgram& p, const LayerKind& kind, LayerSlot x1) {
  const bool sums = kind.deduplicates;  // what experts put out is weighted and added there
  const bool one = kind.is_one_segment;
  const bool has_shared = kind.has_shared && !one;
  DividedBlock block{.segment = kExperts,
                     .collective = kExpertTensor,
                     .is_shared = kind.shares_experts,
                     .divides_tokens = kind.gathers_rows};
  const ComputePart share = kind.splits_exchange ? ComputePart::kRest : ComputePart::kWhole;
  LayerPass& f = p.forward;
  const LayerSlot tokens = gather_tokens(p, f, kind, x1);
  LayerSlot rows = tokens, routing = LayerSlot::none(), gate_tape = LayerSlot::none();
  if (!one) {
    rows = p.slot(kRows, kGate);
    routing = p.slot(kRouting, kGate);
    gate_tape = p.slot(kTape, kGate);
    write_gate(p, kind, tokens, {rows, routing, gate_tape});
  }
  const auto count_shared_rows = [&] {
    if (!kind.counts_shared_rows) return;
    f.exchange_counts(Axis::kExpertTensor, kExpertTensor, {routing});
    block.counts = routing;
  };
  const LayerSlot sequence_counts = one ? LayerSlot::none() : sum_sequence_counts(p, kind, routing);
  LayerSlot received = rows;
  if (kind.exchanges) {
    received = p.slot(kReceived, kGate);
    if (kind.exchanges_counts) f.exchange_counts(kind.exchange_axis(), kGate, {routing});
    count_shared_rows();
    exchange(f, kind, kGate, ComputePart::kBefore, {rows, routing}, {received});
  } else {
    count_shared_rows();
  }
  LayerSlot residual = x1, shared_tape = LayerSlot::none();
  if (has_shared) {
    residual = p.slot(kHidden, kSharedExperts);
    shared_tape = p.slot(kTape, kSharedExperts);
    f.compute(kSharedExperts, {x1}, {residual, shared_tape});
  }
  if (kind.exchanges) f.turn();
  const LayerSlot gathered = block.gather(p, f, received).slot;
  LayerSlot expert_rows = p.slot(kExpertRows, kExperts);
  const LayerSlot experts_tape = p.slot(kTape, kExperts);
  const LayerSlot part = block.partial(p, expert_rows);
  f.compute(kExperts, {gathered, routing}, {part, experts_tape}, share);
  block.sum(f, part, expert_rows);
  LayerSlot returned = expert_rows;
  if (kind.exchanges) {
    returned = p.slot(kReturned, kExperts);
    exchange(f, kind, kExperts, ComputePart::kBehind, {expert_rows, routing}, {returned});
  }
  returned = one ? gather_behind_segment(p, f, kind, kHidden, returned)
                 : gather_divided_rows(p, f, kind, kReturned, returned, routing);
  if (kind.exchanges) f.turn();
  p.output = returned;
  if (!one) {
    p.output = p.slot(kHidden, kUnpermute);
    f.compute(kUnpermute, {returned, routing, residual, sequence_counts}, {p.output});
  }

  LayerPass& b = p.backward;
  LayerSlot gx = p.output_gradient;
  const LayerSlot g_tokens = gather_tokens(p, b, kind, gx);
  LayerSlot g_returned = g_tokens, g_routing = LayerSlot::none();
  if (!one) {
    g_returned = p.slot(kReturnedGradient, kUnpermute);
    g_routing = p.slot(kRoutingGradient, sums ? kGate : kUnpermute);
    if (sums)
      b.compute(kUnpermute, {g_tokens, routing}, {g_returned});
    else
      b.compute(kUnpermute, {g_tokens, returned, routing}, {g_returned, g_routing});
  }
  LayerSlot g_expert_rows = g_returned;
  if (kind.exchanges) {
    g_expert_rows = p.slot(kExpertRowsGradient, kExperts);
    exchange(b, kind, kExperts, ComputePart::kBefore, {g_returned, routing}, {g_expert_rows});
  }
  if (has_shared) {
    const LayerSlot g_residual = p.slot(kHiddenGradient, kSharedExperts);
    b.run_again(kSharedExperts);
    b.compute(kSharedExperts, {gx, x1, shared_tape}, {g_residual});
    gx = g_residual;
  }
  if (kind.exchanges) b.turn();
  const auto [g_gathered, received_again] =
      kind.counts_shared_rows
          ? block.gather(p, b, g_expert_rows, received)
          : DividedBlock::Whole{block.gather(p, b, g_expert_rows).slot, received};
  b.run_again(kExperts);
  LayerSlot g_rows = p.slot(kind.exchanges ? kReceivedGradient : kRowsGradient, kExperts);
  const LayerSlot g_part = block.partial(p, g_rows);
  LayerSlotList reads{g_gathered, received_again, routing, experts_tape};
  if (received_again != received) reads.push_back(received);  // freed when its gathers are done
  b.compute(kExperts, reads, {g_part}, share);
  block.sum(b, g_part, g_rows);
  if (kind.exchanges) {
    const LayerSlot g_received = g_rows;
    g_rows = p.slot(kRowsGradient, kGate);
    exchange(b, kind, kGate, ComputePart::kBehind, {g_received, routing},
             {g_rows, sums && !one ? g_routing : LayerSlot::none()});
  }
  g_rows = one ? gather_behind_segment(p, b, kind, kHiddenGradient, g_rows)
               : gather_divided_rows(p, b, kind, kRowsGradient, g_rows, routing);
  if (kind.exchanges) b.turn();
  b.run_again(kAttention);
  if (one) return g_rows;
  const LayerSlot g_x1 = p.slot(kHiddenGradient, kGate);
  b.compute(kGate, {g_rows, g_routing, gx, x1, routing, gate_tape, sequence_counts}, {g_x1});
  return g_x1;
}

}  // namespace piper::schedule
