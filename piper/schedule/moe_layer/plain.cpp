#include <piper/schedule/moe_layer/plain.h>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;
using strategy::Axis;

LayerSlot write_plain_mixture(LayerProgram& p, const LayerKind& kind, LayerSlot x1) {
  const bool sums = kind.deduplicates;  // what experts put out is weighted and added there
  LayerPass& f = p.forward;
  const LayerSlot rows = p.slot(kRows, kGate), routing = p.slot(kRouting, kGate);
  const LayerSlot gate_tape = p.slot(kTape, kGate);
  f.compute(kGate, {x1}, {rows, routing, gate_tape});
  LayerSlot received = rows;
  if (kind.exchanges) {
    received = p.slot(kReceived, kGate);
    f.exchange_counts(Axis::kExpert, kGate, routing);
    f.all_to_all(Axis::kExpert, kGate, {rows, routing}, {received});
  }
  LayerSlot residual = x1, shared_tape = LayerSlot::none();
  if (kind.has_shared) {
    residual = p.slot(kHidden, kSharedExperts);
    shared_tape = p.slot(kTape, kSharedExperts);
    f.compute(kSharedExperts, {x1}, {residual, shared_tape});
  }
  const LayerSlot expert_rows = p.slot(kExpertRows, kExperts);
  const LayerSlot experts_tape = p.slot(kTape, kExperts);
  f.compute(kExperts, {received, routing}, {expert_rows, experts_tape});
  LayerSlot returned = expert_rows;
  if (kind.exchanges) {
    returned = p.slot(kReturned, kExperts);
    f.all_to_all(Axis::kExpert, kExperts, {expert_rows, routing}, {returned});
  }
  p.output = p.slot(kHidden, kMerge);
  f.compute(kMerge, {returned, routing, residual}, {p.output});

  LayerPass& b = p.backward;
  LayerSlot gx = p.output_gradient;
  const LayerSlot g_returned = p.slot(kReturnedGradient, kMerge);
  const LayerSlot g_routing = p.slot(kRoutingGradient, sums ? kGate : kMerge);
  if (sums)
    b.compute(kMerge, {gx, routing}, {g_returned});
  else
    b.compute(kMerge, {gx, returned, routing}, {g_returned, g_routing});
  LayerSlot g_expert_rows = g_returned;
  if (kind.exchanges) {
    g_expert_rows = p.slot(kExpertRowsGradient, kExperts);
    b.all_to_all(Axis::kExpert, kExperts, {g_returned, routing}, {g_expert_rows});
  }
  if (kind.has_shared) {
    const LayerSlot g_residual = p.slot(kHiddenGradient, kSharedExperts);
    b.run_again(kSharedExperts);
    b.compute(kSharedExperts, {gx, x1, shared_tape}, {g_residual});
    gx = g_residual;
  }
  b.run_again(kExperts);
  LayerSlot g_rows = p.slot(kind.exchanges ? kReceivedGradient : kRowsGradient, kExperts);
  b.compute(kExperts, {g_expert_rows, received, routing, experts_tape}, {g_rows});
  if (kind.exchanges) {
    const LayerSlot g_received = g_rows;
    g_rows = p.slot(kRowsGradient, kGate);
    b.all_to_all(Axis::kExpert, kGate, {g_received, routing},
                 {g_rows, sums ? g_routing : LayerSlot::none()});
  }
  b.run_again(kAttention);
  const LayerSlot g_x1 = p.slot(kHiddenGradient, kGate);
  b.compute(kGate, {g_rows, g_routing, gx, x1, routing, gate_tape}, {g_x1});
  return g_x1;
}

}  // namespace piper::schedule
