#include <piper/base/error.h>
#include <piper/schedule/divided_block.h>
#include <piper/schedule/moe_layer/chunked.h>
#include <piper/schedule/moe_layer/divided_rows.h>
#include <piper/schedule/moe_layer/plain.h>

namespace piper::schedule {

using enum SegmentKind;
using enum SlotKind;
using strategy::Axis;

namespace {

// The slots of one chunk that both passes know.
struct Chunk {
  int16_t number = 1;
  LayerSlot rows, routing, received, gathered, expert_rows, returned, tape;
  LayerSlot g_returned, g_routing, g_expert_rows, g_rows;
  DividedBlock::Whole again;  // what the experts' backward reads
};

class ChunkedMixture {
 public:
  ChunkedMixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1)
      : p_(program),
        kind_(kind),
        x1_(x1),
        block_{.segment = kExperts,
               .collective = kExpertTensor,
               .is_shared = kind.shares_experts,
               .divides_tokens = kind.gathers_rows},
        chunks_(static_cast<size_t>(kind.chunks)) {
    for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].number = static_cast<int16_t>(i + 1);
  }

  void forward() {
    LayerPass& f = p_.forward;
    gate(f);
    for (Chunk& c : chunks_) dispatch(f, c);
    f.set_chunk(0);
    residual_ = x1_;
    if (kind_.has_shared) {
      residual_ = p_.slot(kHidden, kSharedExperts);
      shared_tape_ = p_.slot(kTape, kSharedExperts);
      f.compute(kSharedExperts, {x1_}, {residual_, shared_tape_});
    }
    if (kind_.exchanges) f.turn();
    for (Chunk& c : chunks_) experts(f, c);
    f.set_chunk(0);
    if (kind_.exchanges) f.turn();
    LayerSlotList reads = returned();
    reads.push_back(residual_);
    reads.push_back(sequence_counts_);
    p_.output = p_.slot(kHidden, kUnpermute);
    f.compute(kUnpermute, reads, {p_.output});
  }

  LayerSlot backward() {
    LayerPass& b = p_.backward;
    merge_backward(b);
    for (Chunk& c : chunks_) combine_backward(b, c);
    b.set_chunk(0);
    LayerSlot gx = p_.output_gradient;
    if (kind_.has_shared) {
      const LayerSlot g_residual = p_.slot(kHiddenGradient, kSharedExperts);
      b.run_again(kSharedExperts);
      b.compute(kSharedExperts, {gx, x1_, shared_tape_}, {g_residual});
      gx = g_residual;
    }
    if (kind_.exchanges) b.turn();
    for (Chunk& c : chunks_) experts_backward(b, c);
    b.set_chunk(0);
    if (kind_.exchanges) b.turn();
    b.run_again(kAttention);
    return gate_backward(b, gx);
  }

 private:
  void gate(LayerPass& f) {
    LayerSlotList writes, routings;
    for (Chunk& c : chunks_) {
      c.rows = p_.slot(kRows, kGate, c.number);
      c.routing = p_.slot(kRouting, kGate, c.number);
      writes.push_back(c.rows);
      writes.push_back(c.routing);
      routings.push_back(c.routing);
    }
    gate_tape_ = p_.slot(kTape, kGate);
    writes.push_back(gate_tape_);
    write_gate(p_, kind_, x1_, writes);
    sequence_counts_ = sum_sequence_counts(p_, kind_, chunks_.front().routing);
    if (kind_.exchanges_counts) f.exchange_counts(kind_.exchange_axis(), kGate, routings);
    if (kind_.counts_shared_rows) f.exchange_counts(Axis::kExpertTensor, kExpertTensor, routings);
  }

  DividedBlock block_of(const Chunk& c) const {
    DividedBlock block = block_;
    if (kind_.counts_shared_rows) block.counts = c.routing;
    return block;
  }

  void dispatch(LayerPass& f, Chunk& c) {
    f.set_chunk(c.number);
    c.received = c.rows;
    if (kind_.exchanges) {
      c.received = p_.slot(kReceived, kGate, c.number);
      exchange(f, c, kGate, {c.rows, c.routing}, {c.received});
    }
    c.gathered = block_of(c).gather(p_, f, c.received).slot;
  }

  void experts(LayerPass& f, Chunk& c) {
    f.set_chunk(c.number);
    c.expert_rows = p_.slot(kExpertRows, kExperts, c.number);
    c.tape = p_.slot(kTape, kExperts, c.number);
    const LayerSlot part = block_.partial(p_, c.expert_rows);
    f.compute(kExperts, {c.gathered, c.routing}, {part, c.tape});
    block_of(c).sum(f, part, c.expert_rows);
    c.returned = c.expert_rows;
    if (kind_.exchanges) {
      c.returned = p_.slot(kReturned, kExperts, c.number);
      f.all_to_all(kind_.exchange_axis(), kExperts, {c.expert_rows, c.routing}, {c.returned});
    }
    c.returned = gather_divided_rows(p_, f, kind_, kReturned, c.returned, c.routing);
  }

  void merge_backward(LayerPass& b) {
    LayerSlotList reads{p_.output_gradient}, writes;
    for (const LayerSlot slot : returned()) reads.push_back(slot);
    for (Chunk& c : chunks_) {
      c.g_returned = p_.slot(kReturnedGradient, kUnpermute, c.number);
      c.g_routing = p_.slot(kRoutingGradient, kUnpermute, c.number);
      writes.push_back(c.g_returned);
      writes.push_back(c.g_routing);
    }
    b.compute(kUnpermute, reads, writes);
  }

  void combine_backward(LayerPass& b, Chunk& c) {
    b.set_chunk(c.number);
    c.g_expert_rows = c.g_returned;
    if (kind_.exchanges) {
      c.g_expert_rows = p_.slot(kExpertRowsGradient, kExperts, c.number);
      exchange(b, c, kExperts, {c.g_returned, c.routing}, {c.g_expert_rows});
    }
    const DividedBlock block = block_of(c);
    c.again = kind_.counts_shared_rows
                  ? block.gather(p_, b, c.g_expert_rows, c.received)
                  : DividedBlock::Whole{block.gather(p_, b, c.g_expert_rows).slot, c.received};
  }

  void experts_backward(LayerPass& b, Chunk& c) {
    b.set_chunk(c.number);
    b.run_again(kExperts);
    c.g_rows = p_.slot(kind_.exchanges ? kReceivedGradient : kRowsGradient, kExperts, c.number);
    const LayerSlot part = block_.partial(p_, c.g_rows);
    LayerSlotList reads{c.again.slot, c.again.again, c.routing, c.tape};
    if (c.again.again != c.received) reads.push_back(c.received);  // freed when gathers are done
    b.compute(kExperts, reads, {part});
    block_of(c).sum(b, part, c.g_rows);
    if (kind_.exchanges) {
      const LayerSlot g_received = c.g_rows;
      c.g_rows = p_.slot(kRowsGradient, kGate, c.number);
      b.all_to_all(kind_.exchange_axis(), kGate, {g_received, c.routing}, {c.g_rows});
    }
    c.g_rows = gather_divided_rows(p_, b, kind_, kRowsGradient, c.g_rows, c.routing);
  }

  LayerSlot gate_backward(LayerPass& b, LayerSlot gx) {
    LayerSlotList reads;
    for (const Chunk& c : chunks_) {
      reads.push_back(c.g_rows);
      reads.push_back(c.g_routing);
    }
    reads.push_back(gx);
    reads.push_back(x1_);
    for (const Chunk& c : chunks_) reads.push_back(c.routing);
    reads.push_back(gate_tape_);
    reads.push_back(sequence_counts_);
    const LayerSlot g_x1 = p_.slot(kHiddenGradient, kGate);
    b.compute(kGate, reads, {g_x1});
    return g_x1;
  }

  // Towards the experts: behind the chunk before.
  void exchange(LayerPass& pass, const Chunk& c, SegmentKind whose, const LayerSlotList& reads,
                const LayerSlotList& writes) const {
    if (c.number == 1)
      pass.all_to_all(kind_.exchange_axis(), whose, reads, writes);
    else
      pass.all_to_all_behind(kind_.exchange_axis(), whose, reads, writes);
  }

  // What merge reads of the chunks.
  LayerSlotList returned() const {
    LayerSlotList list;
    for (const Chunk& c : chunks_) {
      list.push_back(c.returned);
      list.push_back(c.routing);
    }
    return list;
  }

  LayerProgram& p_;
  const LayerKind& kind_;
  LayerSlot x1_;
  DividedBlock block_;
  std::vector<Chunk> chunks_;
  LayerSlot gate_tape_ = LayerSlot::none(), sequence_counts_ = LayerSlot::none();
  LayerSlot residual_ = LayerSlot::none(), shared_tape_ = LayerSlot::none();
};

}  // namespace

LayerSlot write_chunked_mixture(LayerProgram& program, const LayerKind& kind, LayerSlot x1) {
  PIPER_CHECK(
      kind.chunks > 1 && !kind.deduplicates && !kind.is_one_segment && !kind.splits_exchange,
      "chunks of rows of a mixture in several segments");
  ChunkedMixture mixture(program, kind, x1);
  mixture.forward();
  return mixture.backward();
}

}  // namespace piper::schedule
