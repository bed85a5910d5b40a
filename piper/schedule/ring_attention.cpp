#include <piper/schedule/ring_attention.h>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;

namespace {

// The keys and values of hop `hop` from those of the hop before.
LayerSlot pass_keys(LayerProgram& p, LayerPass& pass, int16_t hop, LayerSlot before,
                    bool is_behind_compute) {
  const LayerSlot keys = p.slot(kKeysAndValues, kContext, 0, hop);
  pass.set_hop(hop);
  pass.pass_on({before}, {keys}, is_behind_compute);
  return keys;
}

}  // namespace

LayerSlot write_ring(LayerProgram& p, int16_t ranks, LayerSlot queries, LayerSlot keys) {
  LayerPass& f = p.forward;
  LayerSlot here = keys, before = LayerSlot::none(), outputs = LayerSlot::none();
  for (int16_t hop = 0; hop < ranks; ++hop) {
    const LayerSlot next = hop + 1 < ranks
                               ? pass_keys(p, f, static_cast<int16_t>(hop + 1), here, hop > 0)
                               : LayerSlot::none();
    f.set_hop(hop);
    const LayerSlot made = p.slot(kHeadOutputs, kRingStep, 0, hop);
    f.compute(kRingStep, {queries, here, outputs, before}, {made});
    outputs = made;
    before = here;
    here = next;
  }
  f.set_hop(0);
  return outputs;
}

RingGradients write_ring_back(LayerProgram& p, int16_t ranks, const LayerSlotList& reads,
                              const LayerSlotList& frees, const RingSlots& forward) {
  LayerPass& b = p.backward;
  LayerSlot here = pass_keys(p, b, 1, forward.keys, true), before = LayerSlot::none();
  b.set_hop(0);
  const LayerSlot g_outputs = p.slot(kHeadOutputsGradient, kAttention);
  LayerSlotList attention = reads;
  for (const LayerSlot slot : frees) attention.push_back(slot);
  b.compute(kAttention, attention, {g_outputs});

  RingGradients g;
  const auto step = [&](int16_t hop, LayerSlot keys, LayerSlot freed) {
    b.set_hop(hop);
    const LayerSlot queries = p.slot(kQueriesGradient, kRingStep, 0, hop),
                    part = p.slot(kKeysAndValuesGradient, kRingStep, 0, hop);
    b.compute(kRingStep, {g_outputs, forward.queries, keys, forward.outputs, g.queries, freed},
              {queries, part});
    g.queries = queries;
    return part;
  };
  for (int16_t hop = 1; hop < ranks; ++hop) {
    const LayerSlot next = hop + 1 < ranks
                               ? pass_keys(p, b, static_cast<int16_t>(hop + 1), here, true)
                               : LayerSlot::none();
    const LayerSlot part = step(hop, here, before);
    const LayerSlot sum = p.slot(kKeysAndValuesGradient, kContext, 0, hop);
    b.pass_on({part, g.keys}, {sum}, false);
    g.keys = sum;
    before = here;
    here = next;
  }
  g.own_part = step(0, forward.keys, LayerSlot::none());
  return g;
}

}  // namespace piper::schedule
