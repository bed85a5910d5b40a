// A block of a layer (attention, a dense feed-forward, an expert's) whose matrices several ranks
// share: what is communicated around its segment's compute. The first product is cut by columns,
// the last by rows (Shoeybi et al. 2019), so that one sum at the end makes it whole.
//
//   tokens divided between the blocks (sequence parallelism, Korthikanti et al. 2022)
//     forward    all-gather x        compute   reduce-scatter
//     backward   all-gather g, x     compute   reduce-scatter
//                (x only where the trainer does not keep it gathered from the forward on)
//   replicated
//     forward                        compute   all-reduce
//     backward                       compute   all-reduce
//
// Where the trainer splits, a part of the segment computes beside what arrives, another beside what
// leaves.
#pragma once

#include <piper/schedule/layer_program.h>

namespace piper::schedule {

struct DividedBlock {
  SegmentKind segment = SegmentKind::kAttention;
  SegmentKind collective = SegmentKind::kTensor;
  bool is_shared = false;       // else nothing is communicated
  bool divides_tokens = false;  // between the blocks
  bool splits = false;
  // If ranks have any number of rows each, this slot has the numbers; every collective reads it.
  LayerSlot counts = LayerSlot::none();

  // What the segment reads in place of `slot`, and of `again` where that is given, which is then
  // gathered in the same task.
  struct Whole {
    LayerSlot slot, again;
  };
  Whole gather(LayerProgram& program, LayerPass& pass, LayerSlot slot,
               LayerSlot again = LayerSlot::none()) const;
  // What the segment writes in place of `result`, whose kind and writer the sum has.
  LayerSlot partial(LayerProgram& program, LayerSlot result) const;
  // Sums it up into `result`.
  void sum(LayerPass& pass, LayerSlot partial, LayerSlot result) const;
  ComputePart share() const {
    return is_shared && splits ? ComputePart::kRest : ComputePart::kWhole;
  }
};

}  // namespace piper::schedule
