#include <piper/base/error.h>
#include <piper/schedule/divided_block.h>
#include <piper/schedule/layer_kind.h>
#include <piper/schedule/moe_layer/chunked.h>
#include <piper/schedule/moe_layer/parm_s1.h>
#include <piper/schedule/moe_layer/plain.h>
#include <piper/schedule/ring_attention.h>
#include <piper/strategy/token_chunk.h>

#include <map>
#include <mutex>
#include <utility>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;
using graph::TaskKind;

namespace {

DividedBlock block_of(const LayerKind& kind, SegmentKind segment) {
  return {.segment = segment,
          .collective = kTensor,
          .is_shared = kind.shares_matrices,
          .divides_tokens = kind.divides_tokens,
          .splits = kind.splits_tensor};
}

// Keys and values of the other ranks pass by while attention works on those that are there (Liu et
// al. 2023); in the backward they do so again, with their gradients.
LayerSlot pass_round(LayerProgram& p, LayerPass& pass, const LayerKind& kind, LayerSlot x) {
  if (!kind.shares_sequences || kind.projects_apart()) return LayerSlot::none();
  const LayerSlot keys_and_values = p.slot(kKeysAndValues, kContext);
  pass.collective(TaskKind::kRing, kContext, {x}, {keys_and_values});
  if (kind.splits_context) pass.compute_part(kAttention, ComputePart::kBeside);
  return keys_and_values;
}

ComputePart attention_share(const DividedBlock& block, const LayerKind& kind) {
  return kind.shares_sequences && kind.splits_context ? ComputePart::kRest : block.share();
}

// What attention keeps of a micro-batch between its passes where its projections stand apart.
struct ProjectedSlots {
  LayerSlot queries = LayerSlot::none(), keys = LayerSlot::none(), tape = LayerSlot::none();
  // What the rest of attention reads: keys and values of all ranks; or what ring steps have made.
  LayerSlot all_keys = LayerSlot::none(), outputs = LayerSlot::none();
};

ProjectedSlots project(LayerProgram& p, const LayerKind& kind, LayerSlot x) {
  if (!kind.projects_apart()) return {};
  ProjectedSlots made{.queries = p.slot(kQueries, kProjection),
                      .keys = p.slot(kKeysAndValues, kProjection),
                      .tape = p.slot(kTape, kProjection)};
  p.forward.compute(kProjection, {x}, {made.queries, made.keys, made.tape});
  if (kind.ring > 0) {
    made.outputs = write_ring(p, kind.ring, made.queries, made.keys);
    return made;
  }
  made.all_keys = p.slot(kKeysAndValues, kContext);
  p.forward.collective(TaskKind::kAllGather, kContext, {made.keys}, {made.all_keys});
  return made;
}

// From the gradient of x1 to this rank's part of that of x. `kept`: what attention's forward left.
void project_back(LayerProgram& p, const LayerKind& kind, const ProjectedSlots& made,
                  const DividedBlock::Whole& back, LayerSlot x1, LayerSlot kept, LayerSlot part) {
  LayerPass& b = p.backward;
  RingGradients g;
  LayerSlotList whole_x1;
  if (back.again != p.x) whole_x1.push_back(x1);  // freed when all its gathers are done
  if (kind.ring > 0) {
    g = write_ring_back(p, kind.ring, {back.slot, kept}, whole_x1,
                        {.queries = made.queries, .keys = made.keys, .outputs = kept});
  } else {
    b.gather_keys_again({made.keys}, {made.all_keys});
    g = {.queries = p.slot(kQueriesGradient, kAttention),
         .keys = p.slot(kKeysAndValuesGradient, kContext)};
    const LayerSlot g_all = p.slot(kKeysAndValuesGradient, kAttention);
    LayerSlotList reads{back.slot, made.queries, made.all_keys, kept};
    for (const LayerSlot slot : whole_x1) reads.push_back(slot);
    b.compute(kAttention, reads, {g.queries, g_all});
    b.collective(TaskKind::kReduceScatter, kContext, {g_all}, {g.keys});
  }
  LayerSlotList reads{g.queries, g.keys, back.slot, back.again, made.tape};
  if (back.again != p.x) reads.push_back(p.x);
  reads.push_back(g.own_part);
  b.compute(kProjection, reads, {part});
}

// The gradient of a block's output and the block's input, as its backward reads them.
DividedBlock::Whole gather_back(LayerProgram& p, const LayerKind& kind, const DividedBlock& block,
                                LayerSlot gradient, LayerSlot x) {
  if (kind.gathers_inputs_again) return block.gather(p, p.backward, gradient, x);
  return {block.gather(p, p.backward, gradient).slot, x};
}

// From x1 to the program's output, and from its gradient to that of x1, which is returned.
LayerSlot write_dense_mlp(LayerProgram& p, const LayerKind& kind, LayerSlot x1) {
  const DividedBlock block = block_of(kind, kDenseMlp);
  LayerPass& f = p.forward;
  p.output = p.slot(kHidden, kDenseMlp);
  const LayerSlot tape = p.slot(kTape, kDenseMlp);
  const LayerSlot whole_x1 = block.gather(p, f, x1).slot;
  const LayerSlot out = block.partial(p, p.output);
  f.compute(kDenseMlp, {whole_x1}, {out, tape}, block.share());
  block.sum(f, out, p.output);

  LayerPass& b = p.backward;
  const auto [gradient, x1_again] = gather_back(p, kind, block, p.output_gradient, x1);
  b.run_again(kDenseMlp);
  const LayerSlot g_x1 = p.slot(kHiddenGradient, kDenseMlp);
  const LayerSlot part = block.partial(p, g_x1);
  b.compute(kDenseMlp, {gradient, x1_again, tape}, {part}, block.share());
  block.sum(b, part, g_x1);
  b.run_again(kAttention);
  return g_x1;
}

LayerSlot write_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1) {
  if (kind.is_one_segment) return write_plain_mixture(program, kind, x1);
  switch (kind.moe_schedule) {
    case strategy::MoeSchedule::kPlain:
    case strategy::MoeSchedule::kParmBaseline:
    case strategy::MoeSchedule::kMontaO1:
      return write_plain_mixture(program, kind, x1);
    case strategy::MoeSchedule::kChunked:
    case strategy::MoeSchedule::kFasterMoe:
    case strategy::MoeSchedule::kParmS2:
    case strategy::MoeSchedule::kMontaO2:
      return kind.chunks > 1 ? write_chunked_mixture(program, kind, x1)
                             : write_plain_mixture(program, kind, x1);
    case strategy::MoeSchedule::kParmS1:
      return write_parm_s1_mixture(program, kind, x1);
    case strategy::MoeSchedule::kMontaO3:
      break;  // contradictions() refuses them
  }
  PIPER_CHECK(false, "no such schedule of a mixture layer");
}

}  // namespace

LayerKind layer_kind(const model::Layer& layer, const strategy::Strategy& s,
                     const ExecutionStyle& style) {
  const bool is_moe = layer.feed_forward.is_moe();
  const bool one = is_moe && style.mixture_is_one_segment;
  const bool fuses = is_moe && strategy::fuses_exchange(s);
  const bool exchanges = is_moe && (s.mesh.ep > 1 || fuses), is_divided = s.mesh.tp > 1;
  const bool gathers_rows = is_moe && s.mesh.etp > 1 && !fuses &&
                            (style.splits_replicated_tokens || strategy::gathers_expert_rows(s));
  const bool counts_choices_over_tp = is_moe && is_divided && !strategy::repeats_rows(s) &&
                                      style.exchanges_counts &&
                                      s.micro_batch_sequences % s.mesh.tp != 0;
  const bool counts_choices_over_cp = is_moe && s.mesh.cp > 1 && style.exchanges_counts;
  // In one segment, parts of it that compute beside exchanges stand for chunks and shared experts.
  const bool overlaps = one && !style.splits_replicated_tokens &&
                        (strategy::num_moe_chunks(s) > 1 || layer.feed_forward.has_shared());
  return {.is_moe = is_moe,
          .has_shared = layer.feed_forward.has_shared(),
          .exchanges = exchanges,
          .deduplicates = is_moe && strategy::deduplicates(s),
          .moe_schedule = is_moe ? s.moe_schedule : strategy::MoeSchedule::kPlain,
          .chunks = static_cast<int16_t>(is_moe && !one ? strategy::num_moe_chunks(s) : 1),
          .shares_matrices = is_divided && style.divides_dense_blocks,
          .divides_tokens = is_divided && s.sequence_parallel,
          .shares_sequences = s.mesh.cp > 1,
          .gathers_keys = s.mesh.cp > 1 && style.follows_context_exchange && !strategy::has_ring(s),
          .ring = static_cast<int16_t>(
              style.follows_context_exchange && strategy::has_ring(s) ? s.mesh.cp : 0),
          .counts_choices_over_tp = counts_choices_over_tp,
          .counts_choices_over_cp = counts_choices_over_cp,
          .shares_capacity =
              (counts_choices_over_tp || counts_choices_over_cp) && s.capacity.is_limited(),
          .shares_experts = is_moe && s.mesh.etp > 1 && !fuses,
          .gathers_rows = gathers_rows,
          .gathers_tokens = is_moe && strategy::ranks_per_gated_token_set(s) > 1,
          .divides_rows = is_moe && strategy::divides_rows(s),
          .fuses_exchange = fuses,
          .counts_shared_rows = gathers_rows && style.exchanges_counts,
          .splits_tensor = is_divided && style.splits_tensor,
          .splits_context = s.mesh.cp > 1 && style.splits_context,
          .splits_exchange = exchanges && (style.splits_exchange || overlaps),
          .exchanges_counts = exchanges && style.exchanges_counts,
          .is_one_segment = one,
          .gathers_inputs_again = is_divided && s.sequence_parallel && style.gathers_inputs_again,
          .rerun = {.all = style.reruns_whole_layers,
                    .first = style.reruns_first,
                    .gathers = ((is_divided && s.sequence_parallel) ||
                                (gathers_rows && style.exchanges_counts)) &&
                               style.gathers_inputs_again && !style.keeps_by_layer},
          .keeps_by_layer = style.keeps_by_layer};
}

LayerProgram layer_program(const LayerKind& kind) {
  const DividedBlock block = block_of(kind, kAttention);
  LayerProgram p;
  LayerPass &f = p.forward, &b = p.backward;
  p.x = p.slot(kHidden, kAttention);
  const LayerSlot x1 = p.slot(kHidden, kAttention),
                  tape = p.slot(kind.ring > 0 ? kHeadOutputs : kTape, kAttention);
  const LayerSlot kept = kind.keeps_by_layer ? p.slot(kKept, kAttention) : LayerSlot::none();
  p.output_gradient = p.slot(kHiddenGradient, kAttention);
  const LayerSlot whole_x = block.gather(p, f, p.x).slot;
  const ProjectedSlots projected = project(p, kind, whole_x);
  const LayerSlot keys =
      kind.projects_apart() ? projected.all_keys : pass_round(p, f, kind, whole_x);
  const LayerSlot out = block.partial(p, x1);
  if (kind.ring > 0)
    f.compute(kAttention, {whole_x, projected.outputs}, {out, tape});
  else
    f.compute(kAttention, {whole_x, projected.queries, keys}, {out, tape, kept},
              attention_share(block, kind));
  block.sum(f, out, x1);

  const LayerSlot g_x1 = kind.is_moe ? write_mixture(p, kind, x1) : write_dense_mlp(p, kind, x1);
  const auto [gradient, x_again] = gather_back(p, kind, block, g_x1, p.x);
  const LayerSlot keys_again = pass_round(p, b, kind, gradient);
  p.x_gradient = p.slot(kHiddenGradient, kAttention);
  const LayerSlot part = block.partial(p, p.x_gradient);
  if (kind.projects_apart()) {
    project_back(p, kind, projected, {gradient, x_again}, x1, tape, part);
    block.sum(b, part, p.x_gradient);
    return p;
  }
  LayerSlotList reads{gradient, x_again, x1, tape, kept};
  reads.push_back(keys_again);
  if (x_again != p.x) reads.push_back(p.x);  // which is freed when all its gathers are done
  b.compute(kAttention, reads, {part}, attention_share(block, kind));
  block.sum(b, part, p.x_gradient);
  return p;
}

const LayerPasses& layer_passes(const LayerKind& kind, strategy::Recompute recompute) {
  static std::mutex mutex;
  static std::map<std::pair<LayerKind, strategy::Recompute>, LayerPasses> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({kind, recompute});
  if (is_new) found->second = passes_of(layer_program(kind), recompute, kind.rerun);
  return found->second;
}

}  // namespace piper::schedule
