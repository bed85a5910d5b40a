#include <piper/base/error.h>
#include <piper/schedule/layer_kind.h>
#include <piper/schedule/moe_layer/plain.h>

#include <array>
#include <bitset>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;

namespace {

// From x1 to the program's output, and from its gradient to that of x1, which is returned.
LayerSlot write_dense_mlp(LayerProgram& p, LayerSlot x1) {
  p.output = p.slot(kHidden, kDenseMlp);
  const LayerSlot tape = p.slot(kTape, kDenseMlp);
  p.forward.compute(kDenseMlp, {x1}, {p.output, tape});
  p.backward.run_again(kDenseMlp);
  const LayerSlot g_x1 = p.slot(kHiddenGradient, kDenseMlp);
  p.backward.compute(kDenseMlp, {p.output_gradient, x1, tape}, {g_x1});
  p.backward.run_again(kAttention);
  return g_x1;
}

LayerSlot write_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1) {
  switch (kind.moe_schedule) {
    case strategy::MoeSchedule::kPlain:
      return write_plain_mixture(program, kind, x1);
  }
  PIPER_CHECK(false, "no such schedule of a mixture layer");
}

constexpr size_t kNumKinds = 16 * strategy::kMoeSchedules.size();
size_t index_of(const LayerKind& kind) {
  size_t index = static_cast<size_t>(kind.moe_schedule);
  for (const bool is : {kind.is_moe, kind.has_shared, kind.exchanges, kind.deduplicates})
    index = 2 * index + (is ? 1 : 0);
  return index;
}

LayerKind kind_of(size_t index) {
  const std::bitset<4> is(index % 16);
  return {.is_moe = is[3],
          .has_shared = is[2],
          .exchanges = is[1],
          .deduplicates = is[0],
          .moe_schedule = static_cast<strategy::MoeSchedule>(index / 16)};
}

}  // namespace

LayerKind layer_kind(const model::Layer& layer, const strategy::Strategy& s) {
  const bool is_moe = layer.feed_forward.is_moe();
  return {.is_moe = is_moe,
          .has_shared = layer.feed_forward.has_shared(),
          .exchanges = is_moe && s.mesh.ep > 1,
          .deduplicates = is_moe && strategy::deduplicates(s),
          .moe_schedule = s.moe_schedule};
}

LayerProgram layer_program(const LayerKind& kind) {
  LayerProgram p;
  p.x = p.slot(kHidden, kAttention);
  const LayerSlot x1 = p.slot(kHidden, kAttention), tape = p.slot(kTape, kAttention);
  p.output_gradient = p.slot(kHiddenGradient, kAttention);
  p.forward.compute(kAttention, {p.x}, {x1, tape});
  const LayerSlot g_x1 = kind.is_moe ? write_mixture(p, kind, x1) : write_dense_mlp(p, x1);
  p.x_gradient = p.slot(kHiddenGradient, kAttention);
  p.backward.compute(kAttention, {g_x1, p.x, x1, tape}, {p.x_gradient});
  return p;
}

const LayerPasses& layer_passes(const LayerKind& kind, strategy::Recompute recompute) {
  using OfKind = std::array<LayerPasses, strategy::kRecomputes.size()>;
  static const std::array<OfKind, kNumKinds> known = [] {
    std::array<OfKind, kNumKinds> all;
    for (size_t i = 0; i < kNumKinds; ++i)
      for (const strategy::Recompute r : strategy::kRecomputes)
        all[i][static_cast<size_t>(r)] = passes_of(layer_program(kind_of(i)), r);
    return all;
  }();
  return known[index_of(kind)][static_cast<size_t>(recompute)];
}

}  // namespace piper::schedule
