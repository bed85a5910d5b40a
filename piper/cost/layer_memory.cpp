#include <piper/cost/layer_memory.h>

namespace piper::cost {
namespace {

using schedule::Segment;
using schedule::SegmentKind;
using schedule::SlotKind;

// Sizes of everything in one layer.
class Sizes {
 public:
  Sizes(const model::Model& model, int32_t layer, const SegmentWork& work)
      : model_(model), layer_(layer), work_(work) {}
  bool deduplicated() const { return work_.deduplicated(); }
  int64_t slot(SlotKind kind, SegmentKind writer) const {
    return slot_bytes(model_, {kind, Segment{writer, layer_}}, work_);
  }
  SegmentBytes segment(SegmentKind kind) const {
    return segment_bytes(model_, Segment{kind, layer_}, work_);
  }
  int64_t hidden() const { return slot(SlotKind::kHidden, SegmentKind::kAttention); }
  int64_t hidden_gradient() const {
    return slot(SlotKind::kHiddenGradient, SegmentKind::kAttention);
  }

 private:
  const model::Model& model_;
  int32_t layer_;
  const SegmentWork& work_;
};

// A forward task: its output slots and, when it will be differentiated, its tape. Without a tape
// its parts still exist for a moment.
void forward_task(Stretch& s, int64_t outputs, const SegmentBytes& bytes, bool tape) {
  s.allocate(outputs + (tape ? bytes.tape : 0));
  s.touch(bytes.forward_transient + (tape ? 0 : bytes.tape));
}

void backward_task(Stretch& s, int64_t outputs, const SegmentBytes& bytes, int64_t released) {
  s.allocate(outputs);
  s.touch(bytes.backward_transient);
  s.release(released);
}

// A forward task run again for its tape: its outputs are released at once.
void task_again(Stretch& s, int64_t outputs, const SegmentBytes& bytes) {
  forward_task(s, outputs, bytes, true);
  s.release(outputs);
}

struct Mixture {
  bool has_shared;
  bool sums;        // tokens travel in place of copies: sums return, and nobody reads them backward
  int64_t scratch;  // of an exchange
  int64_t rows, routing, received, expert_rows, returned;
  SegmentBytes gate, experts, merge, shared;
  Mixture(const Sizes& sizes, bool shares, int64_t scratch_bytes)
      : has_shared(shares),
        sums(sizes.deduplicated()),
        scratch(scratch_bytes),
        rows(sizes.slot(SlotKind::kRows, SegmentKind::kGate)),
        routing(sizes.slot(SlotKind::kRouting, SegmentKind::kGate)),
        received(sizes.slot(SlotKind::kReceived, SegmentKind::kGate)),
        expert_rows(sizes.slot(SlotKind::kExpertRows, SegmentKind::kExperts)),
        returned(sizes.slot(SlotKind::kReturned, SegmentKind::kExperts)),
        gate(sizes.segment(SegmentKind::kGate)),
        experts(sizes.segment(SegmentKind::kExperts)),
        merge(sizes.segment(SegmentKind::kMerge)),
        shared(has_shared ? sizes.segment(SegmentKind::kSharedExperts) : SegmentBytes{}) {}
};

// A task that runs while an exchange is under way.
SegmentBytes beside_exchange(const Mixture& m, SegmentBytes bytes) {
  bytes.forward_transient += m.scratch;
  bytes.backward_transient += m.scratch;
  return bytes;
}

// What is sent dies when all has come.
void exchange(Stretch& s, const Mixture& m, int64_t arriving, int64_t sent) {
  s.allocate(arriving);
  s.touch(m.scratch);
  s.release(sent);
}

// Gate to combine; with `kept` the slots that the backward reads stay, and with `nets_kept` the tapes of the experts.
// Leaves the rows for the merge live.
void mixture_forward(Stretch& s, const Mixture& m, int64_t hidden, bool exchanged, bool kept,
                     bool nets_kept, bool merges) {
  forward_task(s, m.rows + m.routing, m.gate, kept);
  if (exchanged) exchange(s, m, m.received, m.rows);
  if (m.has_shared) {
    forward_task(s, hidden, beside_exchange(m, m.shared), nets_kept);
    if (!kept || !merges) s.release(hidden);  // x1, or the output that nobody wants again
  }
  forward_task(s, m.expert_rows, m.experts, nets_kept);
  if (!kept) s.release(exchanged ? m.received : m.rows);
  if (m.sums && !merges)
    s.release(m.expert_rows);
  else if (exchanged)
    exchange(s, m, m.returned, m.expert_rows);
}

// What the merge reads, forward, and backward again.
int64_t merged_rows(const Mixture& m, bool exchanged) {
  return exchanged ? m.returned : m.expert_rows;
}
int64_t kept_rows(const Mixture& m, bool exchanged) {
  return m.sums ? 0 : merged_rows(m, exchanged);
}

// From the gradient of x (live) to the gradient of x1 (in its place), with the parts that are recomputed alone.
void mixture_backward(Stretch& s, const Sizes& sizes, const Mixture& m, bool exchanged,
                      strategy::Recompute parts) {
  const bool nets_again = strategy::drops_experts(parts);
  const int64_t rows_g = sizes.slot(SlotKind::kRowsGradient, SegmentKind::kGate);
  const int64_t received_g = sizes.slot(SlotKind::kReceivedGradient, SegmentKind::kExperts);
  const int64_t expert_rows_g = sizes.slot(SlotKind::kExpertRowsGradient, SegmentKind::kExperts);
  const int64_t returned_g = sizes.slot(SlotKind::kReturnedGradient, SegmentKind::kMerge);
  const int64_t routing_g = sizes.slot(SlotKind::kRoutingGradient, SegmentKind::kMerge);
  backward_task(s, returned_g + (m.sums ? 0 : routing_g), m.merge, kept_rows(m, exchanged));
  if (exchanged) exchange(s, m, expert_rows_g, returned_g);
  const SegmentBytes shared = beside_exchange(m, m.shared);
  if (m.has_shared && nets_again) task_again(s, sizes.hidden(), shared);
  if (m.has_shared)
    backward_task(s, sizes.hidden_gradient(), shared, sizes.hidden_gradient() + m.shared.tape);
  if (nets_again) task_again(s, m.expert_rows, beside_exchange(m, m.experts));
  backward_task(s, exchanged ? received_g : rows_g, m.experts,
                (exchanged ? expert_rows_g + m.received : returned_g + m.rows) + m.experts.tape);
  if (exchanged) exchange(s, m, rows_g + (m.sums ? routing_g : 0), received_g);
  if (strategy::drops_attention(parts))
    task_again(s, sizes.hidden(), beside_exchange(m, sizes.segment(SegmentKind::kAttention)));
  backward_task(s, sizes.hidden_gradient(), m.gate,
                rows_g + routing_g + sizes.hidden_gradient() + m.routing + m.gate.tape);
}

KeptBytes keep_mixture(const Mixture& m, bool exchanged, bool nets_kept) {
  return {.gate = m.gate.tape + m.routing,
          .rows = (exchanged ? m.received : m.rows) + kept_rows(m, exchanged),
          .experts = nets_kept ? m.experts.tape : 0};
}

}  // namespace

KeptBytes& KeptBytes::operator+=(const KeptBytes& other) {
  hidden += other.hidden;
  attention += other.attention;
  gate += other.gate;
  rows += other.rows;
  experts += other.experts;
  dense_mlp += other.dense_mlp;
  head += other.head;
  return *this;
}

KeptBytes KeptBytes::operator*(int64_t factor) const {
  return {hidden * factor,  attention * factor, gate * factor, rows * factor,
          experts * factor, dense_mlp * factor, head * factor};
}

LayerMemory layer_memory(const model::Model& model, int32_t layer, const SegmentWork& work,
                         bool exchanged, strategy::Recompute recompute, int64_t exchange_scratch) {
  const Sizes sizes(model, layer, work);
  const bool moe = model.layers[static_cast<size_t>(layer)].feed_forward.is_moe();
  const bool kept = recompute != strategy::Recompute::kFull;
  // What is recomputed by part, segment by segment.
  const strategy::Recompute parts = kept ? recompute : strategy::Recompute::kNone;
  const bool nets_kept = !strategy::drops_experts(recompute);
  const bool attention_kept = !strategy::drops_attention(recompute);
  const int64_t hidden = sizes.hidden();
  const SegmentBytes attention = sizes.segment(SegmentKind::kAttention);
  const SegmentBytes dense = moe ? SegmentBytes{} : sizes.segment(SegmentKind::kDenseMlp);

  LayerMemory memory;
  memory.kept.hidden = hidden;
  Stretch& forward = memory.forward;
  forward_task(forward, hidden, attention, attention_kept);
  Stretch& backward = memory.backward;
  if (!kept) forward_task(backward, hidden, attention, true);  // recomputation

  if (moe) {
    const Mixture mixture(sizes, model.layers[static_cast<size_t>(layer)].feed_forward.has_shared(),
                          exchange_scratch);
    mixture_forward(forward, mixture, hidden, exchanged, kept, nets_kept, /*merges=*/true);
    forward_task(forward, hidden, mixture.merge, true);
    if (!kept) {
      forward.release(hidden + mixture.routing + merged_rows(mixture, exchanged));
      mixture_forward(backward, mixture, hidden, exchanged, true, true, /*merges=*/false);
    } else {
      if (mixture.has_shared) forward.release(hidden);
      if (mixture.sums) forward.release(mixture.returned);
      if (nets_kept) memory.kept.dense_mlp = mixture.shared.tape;
      memory.kept += keep_mixture(mixture, exchanged, nets_kept);
    }
    mixture_backward(backward, sizes, mixture, exchanged, parts);
  } else {
    forward_task(forward, hidden, dense, nets_kept);
    if (!kept) {
      forward.release(hidden);
      // Its output is not needed again, but the segment writes it.
      forward_task(backward, hidden, dense, true);
      backward.release(hidden);
    } else if (nets_kept) {
      memory.kept.dense_mlp = dense.tape;
    } else {
      task_again(backward, hidden, dense);
    }
    backward_task(backward, sizes.hidden_gradient(), dense, sizes.hidden_gradient() + dense.tape);
    if (strategy::drops_attention(parts)) task_again(backward, hidden, attention);
  }
  if (kept) {
    memory.kept.hidden += hidden;
    if (attention_kept) memory.kept.attention = attention.tape;
  }
  backward_task(backward, sizes.hidden_gradient(), attention,
                sizes.hidden_gradient() + hidden + attention.tape + hidden);
  return memory;
}

}  // namespace piper::cost
