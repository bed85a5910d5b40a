// Which program a layer has. A further schedule of mixture layers is a pair of files in moe_layer/
// and a line in layer_kind.cpp.
#pragma once

#include <piper/schedule/execution_style.h>
#include <piper/schedule/layer_passes.h>

#include <compare>
#include <cstdint>

namespace piper::schedule {

// All that a layer's program depends on.
struct LayerKind {
  bool is_moe = false;
  bool has_shared = false;    // of a mixture: something dense runs beside the routed experts
  bool exchanges = false;     // of a mixture: its experts are on several ranks
  bool deduplicates = false;  // of a mixture: tokens travel in place of their copies
  strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
  int16_t chunks = 1;  // of a mixture: of a rank's tokens, where they are cut
  // Whether several ranks share a layer's matrices (and divide its tokens between the blocks), a
  // sequence, an expert's matrices (and gather their rows, where those are not the same).
  bool shares_matrices = false, divides_tokens = false;
  bool shares_sequences = false;
  // Keys and values of ranks that share a sequence are gathered; or pass round a ring of so many
  // ranks step by step (0: they do not).
  bool gathers_keys = false;
  int16_t ring = 0;
  // Whether attention's projections are a segment of their own.
  bool projects_apart() const { return gathers_keys || ring > 0; }
  // A mixture layer's ranks that divide tokens (tensor or context parallel ones) hold parts of a
  // sequence, whose choices they count together.
  bool counts_choices_over_tp = false, counts_choices_over_cp = false;
  bool shares_capacity = false;  // a capacity is that of sequences whose choices are counted so
  bool shares_experts = false, gathers_rows = false;
  bool gathers_tokens = false;  // of a mixture: strategy::ranks_per_gated_token_set is above 1
  bool divides_rows = false;    // of a mixture: strategy::divides_rows
  bool fuses_exchange = false;  // of a mixture: strategy::fuses_exchange
  // Whom its rows are exchanged with.
  strategy::Axis exchange_axis() const {
    return fuses_exchange ? strategy::Axis::kTensorExpert : strategy::Axis::kExpert;
  }
  // Ranks that gather rows tell each other how many they have received, and gather the rows again
  // in the backward.
  bool counts_shared_rows = false;
  // As in ExecutionStyle; false where the layer has no such communication.
  bool splits_tensor = false, splits_context = false, splits_exchange = false;
  bool exchanges_counts = false;
  bool is_one_segment = false;
  bool gathers_inputs_again = false;
  RecomputeStyle rerun = {};
  bool keeps_by_layer = false;
  auto operator<=>(const LayerKind&) const = default;
};
LayerKind layer_kind(const model::Layer& layer, const strategy::Strategy& strategy,
                     const ExecutionStyle& style = {});

LayerProgram layer_program(const LayerKind& kind);

// The passes of layer_program(kind), made once for all. Thread-safe.
const LayerPasses& layer_passes(const LayerKind& kind, strategy::Recompute recompute);

}  // namespace piper::schedule
