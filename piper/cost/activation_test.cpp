#include <doctest/doctest.h>
#include <piper/cost/activation.h>

namespace piper::cost {
namespace {

using schedule::SegmentKind;
using schedule::SlotKind;

// 2 sequences of 8 tokens; hidden 16, 4 heads of 4 sharing 2 key heads; 4 experts of ffn 6, 2
// chosen, 2 of them here.
model::Model small() {
  model::Model m;
  m.hidden = 16;
  m.vocabulary = 100;
  model::Layer layer;
  layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4};
  layer.feed_forward = {.ffn = 6};
  m.layers.push_back(layer);
  layer.feed_forward.num_experts = 4;
  layer.feed_forward.top_k = 2;
  m.layers.push_back(layer);
  return m;
}

SegmentWork work() {
  return {.sequences = 2,
          .sequence = 8,
          .rows = 32,
          .received_rows = 30,
          .largest_expert_rows = 20,
          .local_experts = 2,
          .element_bytes = 4};
}

int64_t tape(const model::Model& m, SegmentKind kind, int32_t layer) {
  return segment_bytes(m, {kind, layer}, work()).tape;
}

TEST_CASE("attention keeps its projections, its output and one sum a head and token") {
  // 16 tokens * (q 16 + k 8 + v 8 + output 16 + 4 heads) * 4 bytes
  CHECK(tape(small(), SegmentKind::kAttention, 0) == 16 * (16 + 8 + 8 + 16 + 4) * 4);
}

TEST_CASE("attention keeps values of their own size, and no keys of another layer") {
  model::Model m = small();
  m.layers[0].attention.value_head_dim = 3;
  CHECK(tape(m, SegmentKind::kAttention, 0) == 16 * (16 + 8 + 2 * 3 + 4 * 3 + 4) * 4);
  m.layers[0].attention.key_value = model::KeyValue::kOfEarlierLayer;
  CHECK(tape(m, SegmentKind::kAttention, 0) == 16 * (16 + 4 * 3 + 4) * 4);
}

TEST_CASE("a query norm adds nothing to attention's tape but to what it needs while it runs") {
  model::Model m = small();
  const SegmentBytes without = segment_bytes(m, {SegmentKind::kAttention, 0}, work());
  m.layers[0].attention.qk_norm = model::QkNorm::kPerHead;
  const SegmentBytes with = segment_bytes(m, {SegmentKind::kAttention, 0}, work());
  CHECK(with.tape == without.tape);
  CHECK(with.backward_transient == without.backward_transient + 16 * (16 + 8) * 4);
}

TEST_CASE("a dense MLP keeps gate and up, experts the same for the rows they received") {
  CHECK(tape(small(), SegmentKind::kDenseMlp, 0) == 16 * 2 * 6 * 4);
  CHECK(tape(small(), SegmentKind::kExperts, 1) == 30 * 2 * 6 * 4);
}

TEST_CASE(
    "experts need the largest expert's activation, and its rows once more when several ranks "
    "send") {
  model::Model m = small();
  CHECK(segment_bytes(m, {SegmentKind::kExperts, 1}, work()).forward_transient ==
        20 * (6 + 16) * 4);
  SegmentWork alone = work();
  alone.local_experts = 4;
  CHECK(segment_bytes(m, {SegmentKind::kExperts, 1}, alone).forward_transient == 20 * 6 * 4);
}

TEST_CASE(
    "the gate keeps probabilities and choices, and one gradient a sequence with an auxiliary "
    "loss") {
  model::Model m = small();
  CHECK(tape(m, SegmentKind::kGate, 1) == 16 * 4 * 4 + 16 * 2 * 4);
  m.router_aux_coefficient = 0.01;
  CHECK(tape(m, SegmentKind::kGate, 1) == 16 * 4 * 4 + 16 * 2 * 4 + 2 * 4 * 4);
}

TEST_CASE("a z-loss keeps one value a token") {
  model::Model m = small();
  m.router_z_coefficient = 0.001;
  CHECK(tape(m, SegmentKind::kGate, 1) == 16 * 4 * 4 + 16 * 2 * 4 + 16 * 4);
}

TEST_CASE("the head holds logits of one chunk of tokens") {
  model::Model m = small();
  CHECK(segment_bytes(m, {SegmentKind::kHead, -1}, work()).forward_transient == 16 * 100 * 4);
  m.vocabulary = 1 << 20;  // 4 tokens would be 2^22 logits; 64 is the least, 16 are there
  CHECK(head_chunk_rows(m.vocabulary, 16) == 16);
  CHECK(head_chunk_rows(m.vocabulary, 1000) == 64);
  CHECK(head_chunk_rows(1 << 10, 10000) == 1 << 12);
}

TEST_CASE("slots are as large as what they hold") {
  const model::Model m = small();
  const auto bytes = [&](SlotKind kind) {
    return slot_bytes(m, {kind, {SegmentKind::kGate, 1}}, work());
  };
  CHECK(bytes(SlotKind::kHidden) == 16 * 16 * 4);
  CHECK(bytes(SlotKind::kRows) == 32 * 16 * 4);
  CHECK(bytes(SlotKind::kReceived) == 30 * 16 * 4);
  CHECK(bytes(SlotKind::kRouting) == 32 * (4 + 4 + 4));
  SegmentWork fewer = work();  // 5 of 16 x 2 copies were dropped, which have a position still
  fewer.rows = 27;
  CHECK(slot_bytes(m, {SlotKind::kRouting, {SegmentKind::kGate, 1}}, fewer) ==
        27 * (4 + 4) + 32 * 4);
  CHECK(bytes(SlotKind::kRoutingGradient) == 32 * 4);
  CHECK(bytes(SlotKind::kTape) == tape(m, SegmentKind::kGate, 1));
}

}  // namespace
}  // namespace piper::cost
