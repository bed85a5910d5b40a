// What a layer does with a micro-batch on one rank, forward and backward: operations over the
// layer's slots. Each kind of layer and each schedule of a mixture layer is one program
// (layer_kind.h), written once:
//
//   layer_passes.h   derives from it what is kept, run again and freed, whatever is recomputed
//   layer.h          writes its tasks into a step
//   cost/            adds up its seconds and its bytes (layer_cost.h, layer_memory.h)
//
// A program states only what is read and written. Nothing in it depends on routing, sizes or ranks.
#pragma once

#include <piper/schedule/step.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <iterator>
#include <vector>

namespace piper::schedule {

// A slot of a program; one storage for each micro-batch that is on its way.
using LayerSlot = StrongId<struct LayerSlotTag>;
using LayerSlotList = graph::List<LayerSlot>;  // none() entries are left out

struct LayerOperation {
  graph::TaskKind kind = graph::TaskKind::kCompute;
  SegmentKind segment = SegmentKind::kAttention;   // of exchanges: whose rows move
  strategy::Axis group = strategy::Axis::kExpert;  // of communication: who takes part
  ComputePart share = ComputePart::kWhole;         // of compute
  LayerSlotList reads, writes;                     // in the order that step.h fixes
  int16_t chunk = 0, hop = 0;                      // as in Segment
  bool runs_again =
      false;  // backward: here the segment's forward runs once more if its tape was dropped
  bool is_again = false;  // backward: of the forward; left out where its segment has just run again
  bool is_after_yield = false;  // before it another micro-batch may take its turn
  // An all-to-all that begins when the one before has ended, and so does not slow it down.
  bool is_behind_exchange = false;
  bool is_behind_compute = false;  // of communication: begins when the last compute has ended
};

class LayerPass {
 public:
  // The operations that follow are of this chunk of the layer's rows (Segment::chunk).
  void set_chunk(int16_t chunk) { chunk_ = chunk; }
  int16_t chunk() const { return chunk_; }
  // The operations that follow are of the keys and values of this hop (Segment::hop).
  void set_hop(int16_t hop) { hop_ = hop; }
  void compute(SegmentKind segment, const LayerSlotList& reads, const LayerSlotList& writes,
               ComputePart share = ComputePart::kWhole);
  // A part of the segment's compute, which reads and writes what the rest does.
  void compute_part(SegmentKind segment, ComputePart share);
  // Counts travel to the same ranks as the rows of the next all-to-all, which waits for them.
  void exchange_counts(strategy::Axis group, SegmentKind segment, const LayerSlotList& routing);
  void all_to_all(strategy::Axis group, SegmentKind segment, const LayerSlotList& reads,
                  const LayerSlotList& writes);
  // One that begins when the one posted before it has ended.
  void all_to_all_behind(strategy::Axis group, SegmentKind segment, const LayerSlotList& reads,
                         const LayerSlotList& writes);
  // `kind`: an all-gather, a reduce-scatter, an all-reduce or a ring. The group follows from
  // `segment` (axis_of).
  void collective(graph::TaskKind kind, SegmentKind segment, const LayerSlotList& reads,
                  const LayerSlotList& writes);
  // The same in a group that does not follow from the segment.
  void collective_of(strategy::Axis group, graph::TaskKind kind, SegmentKind segment,
                     const LayerSlotList& reads, const LayerSlotList& writes);
  // Gathers keys and values as the forward has, unless attention runs again in this backward. It
  // waits for the compute before it: it reads nothing that the backward makes, and would begin too
  // early.
  void gather_keys_again(const LayerSlotList& reads, const LayerSlotList& writes);
  // Keys and values, or their gradients, to the next rank of a ring; where `is_behind_compute`, not
  // before the compute in front of it has ended.
  void pass_on(const LayerSlotList& reads, const LayerSlotList& writes, bool is_behind_compute);
  void run_again(SegmentKind segment);
  // Here another micro-batch may take its turn: what follows waits for an exchange.
  void turn() { is_turn_due_ = true; }

  const std::vector<LayerOperation>& operations() const { return operations_; }
  bool ends_with_turn() const { return is_turn_due_; }

 private:
  void add(LayerOperation operation);
  std::vector<LayerOperation> operations_;
  int16_t chunk_ = 0, hop_ = 0;
  bool is_turn_due_ = false;
};

// What a program's slot holds, and which segment writes it.
struct ProgramSlot {
  SlotKind kind = SlotKind::kHidden;
  SegmentKind writer = SegmentKind::kAttention;
  int16_t chunk = 0, hop = 0;  // as in Segment
};

struct LayerProgram {
  LayerSlot slot(SlotKind kind, SegmentKind writer, int16_t chunk = 0, int16_t hop = 0) {
    slots.push_back({kind, writer, chunk, hop});
    return LayerSlot(std::ssize(slots) - 1);
  }

  std::vector<ProgramSlot> slots;
  LayerPass forward, backward;
  // The layer's input and output, which come from the layer before and go to the next one; and
  // their gradients.
  LayerSlot x, output, output_gradient, x_gradient;
};

}  // namespace piper::schedule
