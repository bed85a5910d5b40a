#include <piper/schedule/layer.h>

namespace piper::schedule {

using graph::SlotId;
using graph::TaskId;
using graph::TaskKind;

namespace {

enum class Purpose {
  kForwardOnly,  // nothing is kept: every slot is freed by its last reader of the forward
  kForward,      // the backward comes later and reads what is kept
  kRecompute,    // the same, but the layer's output is not wanted
};

// Whether tokens travel: what experts put out is weighted already, and no backward reads what came back of it.
bool deduplicates(RankWriter& writer) { return strategy::deduplicates(writer.step().strategy); }

bool has_shared_experts(const model::Model& model, int32_t layer) {
  return model.layers[layer].feed_forward.has_shared();
}

class LayerForward {
 public:
  LayerForward(RankWriter& writer, int32_t layer, LayerSlots& slots, Purpose purpose)
      : writer_(writer),
        layer_(layer),
        slots_(slots),
        purpose_(purpose),
        dropped_(purpose == Purpose::kForward ? writer.step().strategy.recompute
                                              : strategy::Recompute::kNone) {}

  SlotId write() {
    const Segment attention{SegmentKind::kAttention, layer_};
    slots_.x1 = writer_.slot(SlotKind::kHidden, attention);
    slots_.attention_tape = tape(attention, strategy::drops_attention(dropped_));
    writer_.compute(attention, {.reads = {slots_.x}, .writes = {slots_.x1, slots_.attention_tape}});
    return writer_.step().model.layers[layer_].feed_forward.is_moe() ? write_mixture()
                                                                     : write_dense();
  }

 private:
  SlotId write_dense() {
    const Segment mlp{SegmentKind::kDenseMlp, layer_};
    const SlotId output = writer_.slot(SlotKind::kHidden, mlp);
    slots_.feed_forward_tape = tape(mlp, strategy::drops_experts(dropped_));
    writer_.compute(mlp,
                    {.reads = {slots_.x1},
                     .writes = {output, slots_.feed_forward_tape},
                     .frees = {unless_kept(slots_.x1), recomputes() ? output : SlotId::none()}});
    return output;
  }

  SlotId write_mixture() {
    const bool exchanges = writer_.step().strategy.mesh.ep > 1;
    const Segment gate{SegmentKind::kGate, layer_}, experts{SegmentKind::kExperts, layer_};
    const SlotId rows = writer_.slot(SlotKind::kRows, gate);
    slots_.routing = writer_.slot(SlotKind::kRouting, gate);
    slots_.feed_forward_tape = tape(gate, false);
    writer_.compute(
        gate, {.reads = {slots_.x1}, .writes = {rows, slots_.routing, slots_.feed_forward_tape}});
    slots_.expert_input = exchanges ? write_dispatch(gate, rows) : rows;
    residual_ = has_shared_experts(writer_.step().model, layer_) ? write_shared() : slots_.x1;

    const SlotId expert_rows = writer_.slot(SlotKind::kExpertRows, experts);
    slots_.experts_tape = tape(experts, strategy::drops_experts(dropped_));
    const bool ends_here = recomputes() && deduplicates(writer_);
    writer_.compute(experts, {.reads = {slots_.expert_input, slots_.routing},
                              .writes = {expert_rows, slots_.experts_tape},
                              .frees = {unless_kept(slots_.expert_input),
                                        ends_here ? expert_rows : SlotId::none()}});
    if (ends_here) return SlotId::none();
    slots_.merge_input = exchanges ? write_combine(experts, expert_rows) : expert_rows;
    return recomputes() ? SlotId::none() : write_merge();
  }

  SlotId write_dispatch(const Segment& gate, SlotId rows) {
    TaskId counts = TaskId::none();
    if (!recomputes())
      counts = writer_.exchange(TaskKind::kExchangeCounts, gate, {.reads = {slots_.routing}});
    const SlotId received = writer_.slot(SlotKind::kReceived, gate);
    writer_.exchange(TaskKind::kAllToAll, gate,
                     {.reads = {rows, slots_.routing}, .writes = {received}, .frees = {rows}},
                     counts);
    return received;
  }

  // x1 goes with its last reader.
  SlotId write_shared() {
    const Segment shared{SegmentKind::kSharedExperts, layer_};
    const SlotId output = writer_.slot(SlotKind::kHidden, shared);
    slots_.shared_tape = tape(shared, strategy::drops_experts(dropped_));
    writer_.compute(shared,
                    {.reads = {slots_.x1},
                     .writes = {output, slots_.shared_tape},
                     .frees = {unless_kept(slots_.x1), recomputes() ? output : SlotId::none()}});
    return output;
  }

  SlotId write_combine(const Segment& experts, SlotId expert_rows) {
    const SlotId returned = writer_.slot(SlotKind::kReturned, experts);
    writer_.exchange(
        TaskKind::kAllToAll, experts,
        {.reads = {expert_rows, slots_.routing}, .writes = {returned}, .frees = {expert_rows}});
    return returned;
  }

  SlotId write_merge() {
    const Segment merge{SegmentKind::kMerge, layer_};
    const SlotId output = writer_.slot(SlotKind::kHidden, merge);
    const bool own = residual_ != slots_.x1;
    writer_.compute(
        merge,
        {.reads = {slots_.merge_input, slots_.routing, residual_},
         .writes = {output},
         .frees = {deduplicates(writer_) ? slots_.merge_input : unless_kept(slots_.merge_input),
                   unless_kept(slots_.routing), own ? residual_ : unless_kept(slots_.x1)}});
    return output;
  }

  bool recomputes() const { return purpose_ == Purpose::kRecompute; }
  bool keeps() const { return purpose_ != Purpose::kForwardOnly; }
  SlotId unless_kept(SlotId slot) const { return keeps() ? SlotId::none() : slot; }
  SlotId tape(const Segment& segment, bool dropped) {
    return keeps() && !dropped ? writer_.slot(SlotKind::kTape, segment) : SlotId::none();
  }

  RankWriter& writer_;
  int32_t layer_;
  LayerSlots& slots_;
  Purpose purpose_;
  strategy::Recompute dropped_;       // by part; kNone where the whole layer is recomputed
  SlotId residual_ = SlotId::none();  // what merge adds to
};

// Runs a segment's forward again, for its tape alone: what it puts out is not wanted.
SlotId write_again(RankWriter& writer, const Segment& segment, SlotKind output,
                   const graph::ShortList<SlotId>& reads) {
  const graph::Phase phase = writer.phase();
  writer.begin(graph::Phase::kRecompute, writer.micro_batch());
  const SlotId again = writer.slot(output, segment);
  const SlotId tape = writer.slot(SlotKind::kTape, segment);
  writer.compute(segment, {.reads = reads, .writes = {again, tape}, .frees = {again}});
  writer.begin(phase, writer.micro_batch());
  return tape;
}

void write_attention_again(RankWriter& writer, int32_t layer, LayerSlots& slots) {
  if (slots.attention_tape == SlotId::none())
    slots.attention_tape =
        write_again(writer, {SegmentKind::kAttention, layer}, SlotKind::kHidden, {slots.x});
}

SlotId write_dense_backward(RankWriter& writer, int32_t layer, LayerSlots& slots, SlotId gx) {
  const Segment mlp{SegmentKind::kDenseMlp, layer};
  if (slots.feed_forward_tape == SlotId::none())
    slots.feed_forward_tape = write_again(writer, mlp, SlotKind::kHidden, {slots.x1});
  const SlotId gx1 = writer.slot(SlotKind::kHiddenGradient, mlp);
  writer.compute(mlp, {.reads = {gx, slots.x1, slots.feed_forward_tape},
                       .writes = {gx1},
                       .frees = {gx, slots.feed_forward_tape}});
  return gx1;
}

SlotId write_mixture_backward(RankWriter& writer, int32_t layer, LayerSlots& slots, SlotId gx) {
  const bool exchanges = writer.step().strategy.mesh.ep > 1;
  const bool dedups = deduplicates(writer);
  const bool shares = has_shared_experts(writer.step().model, layer);
  const Segment gate{SegmentKind::kGate, layer}, experts{SegmentKind::kExperts, layer},
      merge{SegmentKind::kMerge, layer};
  const SlotId g_returned = writer.slot(SlotKind::kReturnedGradient, merge);
  const SlotId g_routing = writer.slot(SlotKind::kRoutingGradient, dedups ? gate : merge);
  if (dedups)
    writer.compute(merge, {.reads = {gx, slots.routing}, .writes = {g_returned}});
  else
    writer.compute(merge, {.reads = {gx, slots.merge_input, slots.routing},
                           .writes = {g_returned, g_routing},
                           .frees = {slots.merge_input}});
  SlotId g_expert_rows = g_returned;
  if (exchanges) {
    g_expert_rows = writer.slot(SlotKind::kExpertRowsGradient, experts);
    writer.exchange(
        TaskKind::kAllToAll, experts,
        {.reads = {g_returned, slots.routing}, .writes = {g_expert_rows}, .frees = {g_returned}});
  }
  if (shares) {
    const Segment shared{SegmentKind::kSharedExperts, layer};
    if (slots.shared_tape == SlotId::none())
      slots.shared_tape = write_again(writer, shared, SlotKind::kHidden, {slots.x1});
    const SlotId g_residual = writer.slot(SlotKind::kHiddenGradient, shared);
    writer.compute(shared, {.reads = {gx, slots.x1, slots.shared_tape},
                            .writes = {g_residual},
                            .frees = {gx, slots.shared_tape}});
    gx = g_residual;
  }
  if (slots.experts_tape == SlotId::none())
    slots.experts_tape =
        write_again(writer, experts, SlotKind::kExpertRows, {slots.expert_input, slots.routing});
  const SlotId g_input =
      writer.slot(exchanges ? SlotKind::kReceivedGradient : SlotKind::kRowsGradient, experts);
  writer.compute(experts,
                 {.reads = {g_expert_rows, slots.expert_input, slots.routing, slots.experts_tape},
                  .writes = {g_input},
                  .frees = {g_expert_rows, slots.expert_input, slots.experts_tape}});
  SlotId g_rows = g_input;
  if (exchanges) {
    g_rows = writer.slot(SlotKind::kRowsGradient, gate);
    writer.exchange(TaskKind::kAllToAll, gate,
                    {.reads = {g_input, slots.routing},
                     .writes = {g_rows, dedups ? g_routing : SlotId::none()},
                     .frees = {g_input}});
  }
  write_attention_again(writer, layer, slots);
  const SlotId gx1 = writer.slot(SlotKind::kHiddenGradient, gate);
  writer.compute(
      gate, {.reads = {g_rows, g_routing, gx, slots.x1, slots.routing, slots.feed_forward_tape},
             .writes = {gx1},
             .frees = {g_rows, g_routing, gx, slots.routing, slots.feed_forward_tape}});
  return gx1;
}

}  // namespace

SlotId write_layer_forward(RankWriter& writer, int32_t layer, LayerSlots& slots) {
  const bool drops = writer.step().strategy.recompute == strategy::Recompute::kFull;
  return LayerForward(writer, layer, slots, drops ? Purpose::kForwardOnly : Purpose::kForward)
      .write();
}

void write_layer_recompute(RankWriter& writer, int32_t layer, LayerSlots& slots) {
  LayerForward(writer, layer, slots, Purpose::kRecompute).write();
}

SlotId write_layer_backward(RankWriter& writer, int32_t layer, LayerSlots& slots,
                            SlotId output_gradient) {
  const bool is_moe = writer.step().model.layers[layer].feed_forward.is_moe();
  const SlotId gx1 = is_moe ? write_mixture_backward(writer, layer, slots, output_gradient)
                            : write_dense_backward(writer, layer, slots, output_gradient);
  write_attention_again(writer, layer, slots);
  const Segment attention{SegmentKind::kAttention, layer};
  const SlotId gx = writer.slot(SlotKind::kHiddenGradient, attention);
  writer.compute(attention, {.reads = {gx1, slots.x, slots.x1, slots.attention_tape},
                             .writes = {gx},
                             .frees = {gx1, slots.x, slots.x1, slots.attention_tape}});
  return gx;
}

SlotMeaning layer_output(const model::Model& model, int32_t layer) {
  const bool is_moe = model.layers[layer].feed_forward.is_moe();
  return {SlotKind::kHidden, {is_moe ? SegmentKind::kMerge : SegmentKind::kDenseMlp, layer}};
}

SlotMeaning layer_input_gradient(int32_t layer) {
  return {SlotKind::kHiddenGradient, {SegmentKind::kAttention, layer}};
}

}  // namespace piper::schedule
