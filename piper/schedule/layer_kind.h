// Which program a layer has. A further schedule of mixture layers is a pair of files in moe_layer/
// and a line in layer_kind.cpp.
#pragma once

#include <piper/schedule/layer_passes.h>

namespace piper::schedule {

struct LayerKind {
  bool is_moe = false;
  bool has_shared = false;    // of a mixture: something dense runs beside the routed experts
  bool exchanges = false;     // of a mixture: its experts are on several ranks
  bool deduplicates = false;  // of a mixture: tokens travel in place of their copies
  strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
};
LayerKind layer_kind(const model::Layer& layer, const strategy::Strategy& strategy);

LayerProgram layer_program(const LayerKind& kind);

// The passes of layer_program(kind), made once for all. Thread-safe.
const LayerPasses& layer_passes(const LayerKind& kind, strategy::Recompute recompute);

}  // namespace piper::schedule
