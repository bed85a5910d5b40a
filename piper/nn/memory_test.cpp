// Holds cost/activation.cpp to the allocator: the bytes that each kind of segment keeps and needs.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <piper/cost/activation.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/measured_bytes_test.h>
#include <piper/nn/token_routes.h>
#include <testing/nn/whole_step.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace piper::nn {
namespace {

using namespace testing;
using schedule::SegmentKind;

const Rank kRank(7);

template <class F>
Measured measure(F f) {
  return measured_bytes(kRank, f);
}

int64_t bytes_of(const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); }

// The tolerance is 1 % of what a segment needs for a moment, the allocator's own rounding included.
// In bf16 oneDNN packs a weight into a layout of its own first, which is priced; it is switched off
// here, since what else it takes on shapes as small as these is its own affair. So a bf16 segment
// may need less than its price, by one weight at most.
void check_near(int64_t measured, int64_t predicted, int64_t scale, int64_t packed) {
  CAPTURE(measured);
  CAPTURE(predicted);
  CAPTURE(packed);
  const double rounding = 0.01 * static_cast<double>(scale);
  CHECK(static_cast<double>(measured - predicted) <= rounding);
  CHECK(static_cast<double>(predicted - measured) <= rounding + static_cast<double>(packed));
}

// A forward that keeps `outputs` beside its tape, and a backward that makes `gradients`.
void check_segment(const cost::SegmentBytes& predicted, const Measured& forward, int64_t outputs,
                   const Measured& backward, int64_t gradients, int64_t packed) {
  CHECK(forward.kept - outputs == predicted.tape);
  check_near(forward.peak, outputs + predicted.tape + predicted.forward_transient, forward.peak,
             packed);
  check_near(backward.peak, gradients + predicted.backward_transient,
             backward.peak + predicted.tape, packed);
}

// A backward in parts, of a segment whose tape `tape` is: the input's part keeps what it deferred,
// at most the tape's bytes and `deferred` (row sums and choices go earlier than that says, up to
// `gone`); the weights' part needs no more than its price above it.
void check_parts(Stage& stage, const cost::SegmentBytes& predicted, const Measured& input,
                 int64_t gradients, Tape& tape, int64_t gone, int64_t packed) {
  check_near(input.peak, gradients + predicted.deferred + predicted.input_transient,
             input.peak + predicted.tape, packed);
  const int64_t held = input.kept - gradients + predicted.tape;
  CHECK(held <= predicted.tape + predicted.deferred);
  CHECK(held >= predicted.tape + predicted.deferred - gone);
  const Measured weights = measure([&] { stage.weights_backward(tape); });
  check_near(weights.peak, predicted.weights_transient,
             weights.peak + predicted.tape + predicted.deferred, packed);
  CHECK(tape.deferred.empty());
  CHECK(weights.kept == -held);
}

struct Shape {
  const char* family;
  int64_t hidden, head_dim, ffn, sequences, sequence, vocabulary;
  at::ScalarType dtype;
};

class Bench {
 public:
  Bench(const Shape& shape, int64_t ep, const strategy::Capacity& capacity = {},
        double z_coefficient = 0, int64_t mtp_depth = 0,
        strategy::AllToAll all_to_all = strategy::AllToAll::kFlat, int64_t tensor_ranks = 1,
        int64_t expert_ranks = 1, bool sequence_parallel = true,
        strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain,
        int64_t context_ranks = 1,
        strategy::ContextExchange context_exchange = strategy::ContextExchange::kRing,
        Rank rank = Rank(0))
      : shape_(shape),
        expert_ranks_(expert_ranks),
        model_(model::with_mtp(tiny_model(shape.family), mtp_depth)) {
    model_.router_z_coefficient = z_coefficient;
    at::globalContext().setUserEnabledMkldnn(false);
    at::set_num_threads(1);  // the attention kernel's scratch is one a thread
    model_.hidden = shape.hidden;
    model_.vocabulary = shape.vocabulary;
    for (model::Layer& layer : model_.layers) {
      layer.attention.head_dim = shape.head_dim;
      model::LatentAttention& latent = layer.attention.latent;
      const bool padded = std::string_view(shape.family) == "deepseek_v2";
      latent.value_head_dim = shape.head_dim - (padded ? 3 : 0);
      latent.nope_head_dim = shape.head_dim - latent.rope_head_dim;
      layer.feed_forward.ffn = shape.ffn;
    }
    strategy::Strategy strategy = tiny_strategy(model_, 1, ep, shape.sequence);
    strategy.capacity = capacity;
    strategy.all_to_all = all_to_all;
    strategy.mesh.tp = tensor_ranks;
    strategy.mesh.cp = context_ranks;
    strategy.context_exchange = context_exchange;
    strategy.mesh.etp = expert_ranks;
    strategy.mesh.dp = strategy.mesh.ranks_per_expert_set();
    strategy.sequence_parallel = sequence_parallel && tensor_ranks > 1;
    strategy.moe_schedule = moe_schedule;
    by_ = cost::work_division(strategy);
    stage_ = make_stage(model_, strategy, rank,
                        {.dtype = shape.dtype, .mtp_weight = 1, .mtp_target_tokens = {1}});
    batch_ = random_batch(model_, shape.sequences, shape.sequence, 1);
    x_ = stage_->embedding_forward(batch_.tokens_BS)
             .repeat({by_.tokens / by_.context, 1});  // of all of them
    warm_up();
  }
  ~Bench() { at::globalContext().setUserEnabledMkldnn(true); }

  cost::SegmentWork work(int64_t ep, const Routing* routing = nullptr) const {
    cost::SegmentWork w{.sequences = shape_.sequences,
                        .sequence = shape_.sequence,
                        .by = by_,
                        .element_bytes = static_cast<int64_t>(at::elementSize(shape_.dtype))};
    w.rows = w.gated_tokens() * std::max<int64_t>(1, model_.top_k());
    w.local_experts = model_.num_experts() / ep;
    if (routing == nullptr) return w;
    w.rows = routing->token.size(0);
    w.others_rows = routing->weights.size(0) - w.rows;
    std::vector<int64_t> rows(static_cast<size_t>(w.local_experts));
    const std::vector<int64_t>& counts = routing->computed_counts();
    for (size_t i = 0; i < counts.size(); ++i) rows[i % rows.size()] += counts[i];
    for (const int64_t r : rows) w.gathered_rows += r;
    w.received_rows = w.gathered_rows / (by_.gathers_rows ? expert_ranks_ : 1);  // of each as many
    if (routing->deduplicated) w.received_tokens = routing->received_position.size(0);
    w.largest_expert_rows = *std::max_element(rows.begin(), rows.end());
    return w;
  }
  // From here on backwards run in two parts.
  void divide_backwards() { in_parts_ = true; }

  cost::SegmentBytes predicted(SegmentKind kind, const cost::SegmentWork& w) const {
    return cost::segment_bytes(model_, {kind, kind == SegmentKind::kHead ? -1 : 0}, w);
  }

  void attention() {
    Tape tape{.defers_weights = in_parts_};
    at::Tensor x1, gx;
    const auto f = measure([&] { x1 = stage_->attention_forward(0, x_, shape_.sequence, &tape); });
    const auto b =
        measure([&] { gx = stage_->attention_backward(0, x1, x_, x1, shape_.sequence, tape); });
    const int64_t heads = model_.layers[0].attention.num_heads;
    check(predicted(SegmentKind::kAttention, work(1)), f, bytes_of(x1), b, bytes_of(gx), tape,
          work(1).own_tokens() * heads * std::max<int64_t>(4, work(1).element_bytes),
          packed("self_attn"));
  }
  void attention_without_tape() {
    at::Tensor x1;
    const auto p = predicted(SegmentKind::kAttention, work(1));
    const auto f =
        measure([&] { x1 = stage_->attention_forward(0, x_, shape_.sequence, nullptr); });
    CHECK(f.kept == bytes_of(x1));
    check_near(f.peak, bytes_of(x1) + p.forward_transient + p.tape, f.peak, packed("self_attn"));
  }
  // Its two segments where ranks share sequences.
  void context_attention() {
    Tape tape{.defers_weights = in_parts_}, projection_tape{.defers_weights = in_parts_};
    Stage::Projection own, g, g_own;
    at::Tensor x1, gx;
    const auto slot = [&](schedule::SlotKind kind, SegmentKind segment) {
      return cost::slot_bytes(model_, {kind, {segment, 0}}, work(1));
    };
    using enum schedule::SlotKind;
    const auto projection_f = measure(
        [&] { own = stage_->projection_forward(0, x_, shape_.sequence, &projection_tape); });
    CHECK(bytes_of(own.queries) == slot(kQueries, SegmentKind::kProjection));
    CHECK(bytes_of(own.keys_and_values) == slot(kKeysAndValues, SegmentKind::kProjection));
    const Stage::Projection all{own.queries, own.keys_and_values.repeat({by_.context, 1})};
    CHECK(bytes_of(all.keys_and_values) == slot(kKeysAndValues, SegmentKind::kContext));
    const auto f = measure(
        [&] { x1 = stage_->context_attention_forward(0, x_, all, shape_.sequence, &tape); });
    const auto b =
        measure([&] { g = stage_->context_attention_backward(0, x_, all, shape_.sequence, tape); });
    CHECK(bytes_of(g.queries) == slot(kQueriesGradient, SegmentKind::kAttention));
    CHECK(bytes_of(g.keys_and_values) == slot(kKeysAndValuesGradient, SegmentKind::kAttention));
    const int64_t sums = work(1).own_tokens() * model_.layers[0].attention.num_heads *
                         std::max<int64_t>(4, work(1).element_bytes);
    check(predicted(SegmentKind::kAttention, work(1)), f, bytes_of(x1), b,
          bytes_of(g.queries) + bytes_of(g.keys_and_values), tape, sums, packed("self_attn"));
    g_own = {g.queries, g.keys_and_values.narrow(0, 0, own.keys_and_values.size(0)).clone()};
    CHECK(bytes_of(g_own.keys_and_values) == slot(kKeysAndValuesGradient, SegmentKind::kContext));
    const auto projection_b = measure([&] {
      gx = stage_->projection_backward(0, g_own, x_, x_, shape_.sequence, projection_tape);
    });
    check(predicted(SegmentKind::kProjection, work(1)), projection_f,
          bytes_of(own.queries) + bytes_of(own.keys_and_values), projection_b, bytes_of(gx),
          projection_tape, predicted(SegmentKind::kProjection, work(1)).tape, packed("self_attn"));
  }
  // On a ring: peaks of the step of one hop, which differ by whose keys they are and by rank.
  struct RingPeaks {
    int64_t forward = 0, backward = 0;
  };
  RingPeaks ring_attention(int64_t hop) {
    using enum schedule::SlotKind;
    const auto slot = [&](schedule::SlotKind kind, SegmentKind segment) {
      return cost::slot_bytes(model_, {kind, {segment, 0}}, work(1));
    };
    const auto bytes = [](const Stage::HeadOutputs& of) {
      return bytes_of(of.out) + bytes_of(of.log_sum_exp);
    };
    const Stage::Projection own = stage_->projection_forward(0, x_, shape_.sequence, nullptr);
    Stage::HeadOutputs before, after, kept;
    if (hop > 0) before = stage_->ring_step_forward(0, 0, own, {}, shape_.sequence);
    const Measured f =
        measure([&] { after = stage_->ring_step_forward(0, hop, own, before, shape_.sequence); });
    CHECK(bytes(after) == slot(kHeadOutputs, SegmentKind::kRingStep));
    CHECK(f.kept == bytes(after));
    const at::Tensor x1 = stage_->ring_attention_forward(0, x_, after, kept);
    CHECK(bytes(kept) == slot(kHeadOutputs, SegmentKind::kAttention));
    Tape tape{.defers_weights = in_parts_};
    at::Tensor g_out;
    const Measured rest =
        measure([&] { g_out = stage_->ring_attention_backward(0, x1, kept, tape); });
    CHECK(bytes_of(g_out) == slot(kHeadOutputsGradient, SegmentKind::kAttention));
    CHECK(rest.kept == bytes_of(g_out));
    check_near(rest.peak,
               bytes_of(g_out) + predicted(SegmentKind::kAttention, work(1)).backward_transient,
               rest.peak, packed("self_attn"));
    Stage::Projection g;
    const at::Tensor g_before = at::zeros_like(own.queries);
    const Measured b = measure([&] {
      g = stage_->ring_step_backward(0, hop, g_out, own, kept, g_before, shape_.sequence);
    });
    CHECK(bytes_of(g.queries) == slot(kQueriesGradient, SegmentKind::kRingStep));
    CHECK(bytes_of(g.keys_and_values) == slot(kKeysAndValuesGradient, SegmentKind::kRingStep));
    CHECK(bytes_of(own.keys_and_values) == slot(kKeysAndValues, SegmentKind::kContext));
    CHECK(b.kept == bytes_of(g.queries) + bytes_of(g.keys_and_values));
    return {f.peak - f.kept, b.peak - b.kept};
  }
  void check_ring_step(const RingPeaks& most) {
    const cost::SegmentBytes of = predicted(SegmentKind::kRingStep, work(1));
    const int64_t outputs = cost::slot_bytes(
        model_, {schedule::SlotKind::kQueries, {SegmentKind::kProjection, 0}}, work(1));
    check_near(outputs + most.forward, outputs + of.forward_transient, outputs + most.forward,
               packed("self_attn"));
    check_near(outputs + most.backward, outputs + of.backward_transient, outputs + most.backward,
               packed("self_attn"));
  }
  void dense() {
    Tape tape{.defers_weights = in_parts_};
    at::Tensor x, g;
    const auto f = measure([&] { x = stage_->dense_mlp_forward(0, x_, &tape); });
    const auto b = measure([&] { g = stage_->dense_mlp_backward(0, x, x_, tape); });
    check(predicted(SegmentKind::kDenseMlp, work(1)), f, bytes_of(x), b, bytes_of(g), tape, 0,
          packed("mlp"));
  }
  void shared() {
    Tape tape{.defers_weights = in_parts_};
    at::Tensor x, g;
    const auto f = measure([&] { x = stage_->shared_forward(0, x_, &tape); });
    const auto b = measure([&] { g = stage_->shared_backward(0, x_, x_, tape); });
    check(predicted(SegmentKind::kSharedExperts, work(1)), f, bytes_of(x), b, bytes_of(g), tape,
          work(1).routed_tokens() * work(1).element_bytes, packed("mlp"));
  }
  void head() {
    Tape tape;
    at::Tensor g;
    const auto f = measure([&] { stage_->head_forward(x_, batch_.targets_T, &tape); });
    const auto b = measure([&] { g = stage_->head_backward(x_, batch_.targets_T, tape); });
    check_segment(predicted(SegmentKind::kHead, work(1)), f, 0, b, bytes_of(g), packed("lm_head"));
  }
  // The first module of multi-token prediction, but for its layer.
  void mtp_join_and_head() {
    const auto layer = static_cast<int32_t>(model_.num_layers());
    cost::SegmentWork w = work(1);
    const auto bytes = [&](SegmentKind kind) {
      return cost::segment_bytes(model_, {kind, layer}, w);
    };
    const auto slot = [&](schedule::SlotKind kind) {
      return cost::slot_bytes(model_, {kind, {SegmentKind::kMtpProjection, layer}}, w);
    };
    Tape tape;
    at::Tensor x, g, gx;
    const auto join_f = measure([&] { x = stage_->mtp_join_forward(layer, x_, batch_.tokens_BS); });
    CHECK(bytes_of(x) == slot(schedule::SlotKind::kHidden));
    const auto head_f =
        measure([&] { stage_->mtp_head_forward(layer, x, batch_.targets_T, &tape); });
    const auto head_b = measure([&] { g = stage_->mtp_head_backward(layer, x, tape); });
    check_segment(bytes(SegmentKind::kHead), head_f, 0, head_b, bytes_of(g), packed(""));
    Tape join_tape{.defers_weights = in_parts_};
    const auto join_b = measure(
        [&] { gx = stage_->mtp_join_backward(layer, g, x_, x_, batch_.tokens_BS, join_tape); });
    CHECK(bytes_of(gx) == slot(schedule::SlotKind::kHiddenGradient));
    check(bytes(SegmentKind::kMtpProjection), join_f, bytes_of(x), join_b, bytes_of(gx), join_tape,
          0, packed(""));
  }
  // Before a gate whose capacity is that of sequences which ranks share.
  void choose() {
    at::Tensor choices;
    const Measured f = measure([&] { choices = stage_->choose_forward(0, x_); });
    CHECK(bytes_of(choices) ==
          cost::slot_bytes(
              model_, {schedule::SlotKind::kTokenChoices, {SegmentKind::kRouteOnly, 0}}, work(1)));
    CHECK(f.kept == bytes_of(choices));
    check_near(f.peak,
               bytes_of(choices) + predicted(SegmentKind::kRouteOnly, work(1)).forward_transient,
               f.peak, packed("mlp.gate"));
  }
  // Gate, experts and merge; with ep > 1 every other rank is imagined to send what this one does,
  // and those that share experts' matrices to receive as many.
  void mixture(int64_t ep) {
    Tape gate_tape{.defers_weights = in_parts_}, tape{.defers_weights = in_parts_};
    Routing routing;
    at::Tensor rows, out, x, g_rows, g;
    const at::Tensor gathered = by_.gated > 1 ? x_.repeat({by_.gated, 1}) : x_;
    const auto gate_f = measure(
        [&] { rows = stage_->gate_forward(0, gathered, shape_.sequence, routing, &gate_tape); });
    const int64_t routing_bytes = cost::slot_bytes(
        model_, {schedule::SlotKind::kRouting, {SegmentKind::kGate, 0}}, work(ep, &routing));
    CHECK(routing_bytes ==
          bytes_of(routing.weights) + bytes_of(routing.token) + bytes_of(routing.position) +
              (routing.sequence_counts.defined() ? bytes_of(routing.sequence_counts) : 0));
    if (ep > 1) imagine_peers(ep, routing);
    if (by_.fuses_exchange) imagine_peers(expert_ranks_, routing, 1);
    for (int64_t i = 0; by_.gathers_rows && i < expert_ranks_; ++i)
      routing.shared_counts.insert(routing.shared_counts.end(), routing.received_counts.begin(),
                                   routing.received_counts.end());
    const cost::SegmentWork w = work(ep, &routing);
    const at::Tensor received = at::ones({w.computed_rows(), shape_.hidden}, x_.options());
    const auto experts_f =
        measure([&] { out = stage_->experts_forward(0, received, routing, &tape); });
    // As many as all ranks that divide rows have.
    const at::Tensor returned =
        w.others_rows > 0 ? at::ones({w.merged_rows(), shape_.hidden}, x_.options()) : rows;
    CHECK(bytes_of(returned) ==
          cost::slot_bytes(model_, {schedule::SlotKind::kReturned, {SegmentKind::kDividedRows, 0}},
                           w));
    const auto merge_f = measure([&] { x = stage_->merge_forward(0, returned, routing, x_); });
    CHECK(merge_f.peak == bytes_of(x));
    Stage::MergeGradients merged;
    const auto merge_b =
        measure([&] { merged = stage_->merge_backward(0, gathered, returned, routing); });
    CHECK(bytes_of(merged.returned) == bytes_of(rows));
    const int64_t divided = predicted(SegmentKind::kUnpermute, w).backward_transient;
    const int64_t merge_bytes = bytes_of(merged.returned) + bytes_of(merged.weights) + divided;
    CHECK(merge_b.peak >= merge_bytes);
    CHECK(merge_b.peak <= merge_bytes + (divided > 0 ? 16 : 0));  // and the divisor's scalars
    const auto experts_b =
        measure([&] { g_rows = stage_->experts_backward(0, out, received, routing, tape); });
    check(predicted(SegmentKind::kExperts, w), experts_f, bytes_of(out), experts_b,
          bytes_of(g_rows), tape, 0, packed(".experts."));
    const at::Tensor g_returned = w.others_rows > 0 ? at::ones_like(returned) : merged.returned;
    const auto gate_b = measure([&] {
      g = stage_->gate_backward(0, g_returned, merged.weights, x_, x_, routing, gate_tape);
    });
    check(predicted(SegmentKind::kGate, w), gate_f, bytes_of(rows) + routing_bytes, gate_b,
          bytes_of(g), gate_tape, predicted(SegmentKind::kGate, w).tape, packed(".experts."));
  }
  // Gate and merge of tokens in chunks: what they hold together is what one chunk holds.
  void gate_in_chunks(int64_t num_chunks) {
    Tape tape{.defers_weights = in_parts_};
    std::vector<Routing> routing(static_cast<size_t>(num_chunks));
    std::vector<at::Tensor> rows;
    const auto gate_f =
        measure([&] { rows = stage_->gate_forward(0, x_, {}, shape_.sequence, routing, &tape); });
    cost::SegmentWork all = work(1);
    all.rows = 0;
    int64_t outputs = 0;
    Routings chunks;
    for (size_t c = 0; c < routing.size(); ++c) {
      cost::SegmentWork w = cost::work_of_chunk(work(1), std::ssize(chunks) + 1, num_chunks);
      CHECK(w.rows == rows[c].size(0));  // nothing is dropped
      const schedule::Segment segment{
          .kind = SegmentKind::kGate, .layer = 0, .chunk = static_cast<int16_t>(c + 1)};
      const int64_t routing_bytes =
          bytes_of(routing[c].weights) + bytes_of(routing[c].token) + bytes_of(routing[c].position);
      CHECK(cost::slot_bytes(model_, {schedule::SlotKind::kRouting, segment}, w) == routing_bytes);
      CHECK(cost::slot_bytes(model_, {schedule::SlotKind::kRows, segment}, w) == bytes_of(rows[c]));
      outputs += routing_bytes + bytes_of(rows[c]);
      all.rows += w.rows;
      chunks.push_back(&routing[c]);
    }
    CHECK(all.rows == work(1).rows);
    at::Tensor x, g;
    const auto merge_f = measure([&] { x = stage_->merge_forward(0, rows, chunks, x_); });
    CHECK(merge_f.peak == bytes_of(x));
    std::vector<at::Tensor> g_weights;
    for (const Routing& of : routing) g_weights.push_back(at::ones_like(of.weights));
    const auto gate_b =
        measure([&] { g = stage_->gate_backward(0, rows, g_weights, x, x_, chunks, tape); });
    check(predicted(SegmentKind::kGate, all), gate_f, outputs, gate_b, bytes_of(g), tape,
          predicted(SegmentKind::kGate, all).tape, packed(".experts."));
  }
  // The same where tokens travel in place of their copies.
  void mixture_of_tokens(int64_t ep) {
    Tape gate_tape{.defers_weights = in_parts_}, tape{.defers_weights = in_parts_};
    Routing routing;
    at::Tensor rows, out, g_tokens, g;
    const auto gate_f =
        measure([&] { rows = stage_->gate_forward(0, x_, shape_.sequence, routing, &gate_tape); });
    const int64_t sent_bytes =
        bytes_of(routing.weights) + bytes_of(routing.token) + bytes_of(routing.position);
    imagine_told_peers(ep, routing);
    const cost::SegmentWork w = work(ep, &routing);
    const auto slot = [&](schedule::SlotKind kind) {
      return cost::slot_bytes(model_, {kind, {SegmentKind::kGate, 0}}, w);
    };
    CHECK(slot(schedule::SlotKind::kRouting) ==
          sent_bytes + bytes_of(routing.received_row) + bytes_of(routing.received_position) +
              bytes_of(routing.received_weights) + bytes_of(routing.g_received_weights));
    CHECK(slot(schedule::SlotKind::kRows) == bytes_of(rows));
    const at::Tensor received = at::ones({w.received_tokens, shape_.hidden}, x_.options());
    CHECK(slot(schedule::SlotKind::kReceived) == bytes_of(received));
    const auto experts_f =
        measure([&] { out = stage_->experts_forward(0, received, routing, &tape); });
    const auto experts_b =
        measure([&] { g_tokens = stage_->experts_backward(0, out, received, routing, tape); });
    check(predicted(SegmentKind::kExperts, w), experts_f, bytes_of(out), experts_b,
          bytes_of(g_tokens), tape, 0, packed(".experts."));
    const at::Tensor g_rows = at::ones_like(rows), g_weights = at::ones_like(routing.weights);
    const auto gate_b = measure(
        [&] { g = stage_->gate_backward(0, g_rows, g_weights, x_, x_, routing, gate_tape); });
    CHECK(g.is_same(g_rows));
    // Made in the place of the rows' gradient.
    check(predicted(SegmentKind::kGate, w), gate_f, bytes_of(rows) + sent_bytes, gate_b,
          in_parts_ ? 0 : bytes_of(g), gate_tape, predicted(SegmentKind::kGate, w).tape,
          packed(".experts."));
  }

 private:
  void check(const cost::SegmentBytes& predicted, const Measured& forward, int64_t outputs,
             const Measured& backward, int64_t gradients, Tape& tape, int64_t gone,
             int64_t packed) {
    if (in_parts_)
      check_parts(*stage_, predicted, backward, gradients, tape, gone, packed);
    else
      check_segment(predicted, forward, outputs, backward, gradients, packed);
  }
  void imagine_told_peers(int64_t ep, Routing& routing) const {
    const collective::Units units(collective::apart(ep), 0);
    const collective::RoutesShape told{.num_tokens = routing.position.size(0),
                                       .experts_a_member = std::ssize(routing.counts) / ep};
    const collective::TokenRoutes experts = chosen_experts(routing);
    collective::KnownRoutes known(0, units, told, experts);
    for (int64_t peer = 0; peer < ep; ++peer) {
      std::vector<std::byte> message(
          static_cast<size_t>(collective::told_bytes(peer, 0, units, told)));
      collective::tell(experts, known.own(), peer, 0, units, told, message);
      known.hear(peer, message);
    }
    set_received(routing, known);
    routing.received_weights.fill_(0.5);
  }
  // The largest matrix of a bf16 stage's modules of this name, of experts one's. With latent
  // attention a product's other operand is packed, too, tokens in place of hidden.
  int64_t packed(std::string_view module) const {
    if (shape_.dtype != at::kBFloat16) return 0;
    int64_t most = 0;
    for (const Parameter& p : stage_->parameters())
      if (p.name.find(module) != std::string::npos)
        most = std::max(most, bytes_of(p.value) / (p.value.dim() == 3 ? p.value.size(0) : 1));
    const bool latent = model_.layers[0].attention.kind == model::AttentionKind::kLatent;
    const bool both = latent && module == "self_attn";
    return both ? most + most * x_.size(0) / shape_.hidden : most;
  }
  // The rotary table is made once and belongs to the stage.
  void warm_up() {
    if (by_.context == 1)
      stage_->attention_forward(0, x_, shape_.sequence, nullptr);
    else
      stage_->projection_forward(0, x_, shape_.sequence, nullptr);
  }
  void imagine_peers(int64_t peers, Routing& routing) const {
    imagine_peers(peers, routing, peers);
  }
  void imagine_peers(int64_t peers, Routing& routing, int64_t ep) const {
    const auto local = static_cast<std::ptrdiff_t>(routing.counts.size()) / ep;
    routing.received_counts.clear();
    for (int64_t peer = 0; peer < peers; ++peer)
      routing.received_counts.insert(routing.received_counts.end(), routing.counts.begin(),
                                     routing.counts.begin() + local);
  }

  Shape shape_;
  int64_t expert_ranks_;
  cost::WorkDivision by_;
  model::Model model_;
  std::unique_ptr<Stage> stage_;
  Batch batch_;
  at::Tensor x_;
  bool in_parts_ = false;
};

const Shape kShapes[] = {
    {"mixtral", 64, 16, 96, 2, 33, 1000, at::kFloat},
    {"qwen3_moe", 48, 32, 24, 1, 200, 300, at::kFloat},
    {"olmoe", 64, 16, 200, 3, 70, 700, at::kFloat},
    {"mixtral", 32, 8, 16, 1, 800, 100, at::kDouble},
    {"qwen3_moe", 128, 32, 64, 4, 64, 300, at::kDouble},
    {"mixtral", 64, 16, 96, 2, 33, 1000, at::kBFloat16},
    {"qwen3_moe", 128, 32, 64, 4, 64, 300, at::kBFloat16},
    {"olmoe", 64, 16, 200, 3, 300, 5000, at::kBFloat16},
};

// Its vocabulary is so large that logits come in chunks; to draw its weights takes long.
const Shape kLargeVocabulary{"olmoe", 64, 16, 200, 3, 70, 70000, at::kFloat};

TEST_CASE("attention, gate, experts, merge and head keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.family);
    CAPTURE(shape.sequence);
    Bench bench(shape, 1);
    bench.attention();
    bench.attention_without_tape();
    bench.mixture(1);
    bench.head();
  }
}

TEST_CASE("experts that several ranks send to need the largest expert's rows once more") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const Shape& shape : kShapes)
    for (const int64_t ep : {2, 3}) {
      CAPTURE(shape.family);
      CAPTURE(ep);
      Bench(shape, ep).mixture(ep);
    }
}

TEST_CASE(
    "latent attention, shared experts and every kind of gate keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"deepseek_v2", "deepseek_v3", "qwen2_moe"})
    for (Shape shape : kShapes) {
      shape.family = family;
      INFO("family ", std::string(family));
      CAPTURE(shape.sequence);
      Bench bench(shape, 1);
      bench.attention();
      bench.attention_without_tape();
      bench.mixture(1);
      bench.shared();
    }
}

TEST_CASE("with a capacity and a z-loss a mixture keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "deepseek_v2", "deepseek_v3"})
    for (Shape shape : kShapes)
      for (const int64_t ep : {1, 3}) {
        shape.family = family;
        INFO("family ", std::string(family));
        CAPTURE(shape.sequence);
        CAPTURE(ep);
        Bench(shape, ep, {.factor = 0.5}, 0.001).mixture(ep);
        Bench(shape, ep, {.factor = 1, .drop = strategy::Drop::kPosition}).mixture(ep);
        Bench(shape, ep, {}, 0.001).mixture(ep);
      }
}

TEST_CASE("choices that ranks tell each other keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "qwen2_moe"})
    for (Shape shape : kShapes) {
      shape.family = family;
      INFO("family ", std::string(family));
      CAPTURE(shape.sequence);
      Bench(shape, 1, {.factor = 1}).choose();
    }
}

TEST_CASE("where tokens travel in place of copies a mixture keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "deepseek_v2", "deepseek_v3"})
    for (Shape shape : kShapes)
      for (const int64_t ep : {2, 3}) {
        shape.family = family;
        INFO("family ", std::string(family));
        CAPTURE(shape.sequence);
        CAPTURE(ep);
        constexpr auto kTokens = strategy::AllToAll::kHaloDedup;
        Bench(shape, ep, {}, 0, 0, kTokens).mixture_of_tokens(ep);
        Bench(shape, ep, {.factor = 0.5}, 0.001, 0, kTokens).mixture_of_tokens(ep);
      }
}

TEST_CASE("gate and merge of tokens in chunks keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "deepseek_v3"})
    for (Shape shape : kShapes)
      for (const int64_t chunks : {2, 7}) {
        shape.family = family;
        INFO("family ", std::string(family));
        CAPTURE(shape.sequence);
        CAPTURE(chunks);
        Bench(shape, 1).gate_in_chunks(chunks);
      }
}

TEST_CASE("a module of multi-token prediction keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.family);
    CAPTURE(shape.sequence);
    Bench(shape, 1, {}, 0, 1).mtp_join_and_head();
  }
}

TEST_CASE("blocks whose matrices ranks share keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  constexpr auto kFlat = strategy::AllToAll::kFlat;
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v3", "llama"})
    for (Shape shape : kShapes)
      for (const int64_t ranks : {2, 4}) {
        if (shape.sequences * shape.sequence % ranks != 0) continue;
        // One latent head needs less than is predicted: its keys and values need no transposition.
        if (ranks == 4 && std::string_view(family) == "deepseek_v3") continue;
        shape.family = family;
        INFO("family ", std::string(family));
        CAPTURE(shape.sequence);
        CAPTURE(ranks);
        Bench bench(shape, 1, {}, 0, 0, kFlat, ranks);
        bench.attention();
        bench.attention_without_tape();
        if (std::string_view(family) == "llama") bench.dense();
        Bench divided(shape, 1, {}, 0, 0, kFlat, ranks);
        divided.divide_backwards();
        divided.attention();
        if (std::string_view(family) == "llama") divided.dense();
      }
}

TEST_CASE("attention of ranks that share sequences keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "llama"})
    for (Shape shape : kShapes)
      for (const int64_t ranks : {2, 4})
        for (const bool in_parts : {false, true}) {
          if (shape.sequence % (2 * ranks) != 0) continue;
          shape.family = family;
          INFO("family ", std::string(family), " ranks ", ranks, " in parts ", in_parts);
          CAPTURE(shape.sequence);
          CAPTURE(shape.head_dim);
          Bench bench(shape, 1, {}, 0, 0, strategy::AllToAll::kFlat, 1, 1, true,
                      strategy::MoeSchedule::kPlain, ranks, strategy::ContextExchange::kGather);
          if (in_parts) bench.divide_backwards();
          bench.context_attention();
        }
}

TEST_CASE("steps of a ring keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "llama"})
    for (Shape shape : kShapes)
      for (const int64_t ranks : {2, 4})
        for (const bool in_parts : {false, true}) {
          if (shape.sequence % (2 * ranks) != 0) continue;
          shape.family = family;
          INFO("family ", std::string(family), " ranks ", ranks);
          CAPTURE(shape.sequence);
          CAPTURE(shape.sequences);
          CAPTURE(shape.head_dim);
          CAPTURE(static_cast<int>(shape.dtype));
          Bench::RingPeaks most;
          for (const int64_t rank : {int64_t{0}, ranks - 1}) {
            Bench bench(shape, 1, {}, 0, 0, strategy::AllToAll::kFlat, 1, 1, true,
                        strategy::MoeSchedule::kPlain, ranks, strategy::ContextExchange::kRing,
                        Rank(static_cast<int32_t>(rank)));
            if (in_parts) bench.divide_backwards();
            for (const int64_t hop : {0, 1}) {
              const Bench::RingPeaks of = bench.ring_attention(hop);
              most.forward = std::max(most.forward, of.forward);
              most.backward = std::max(most.backward, of.backward);
            }
            if (rank > 0) bench.check_ring_step(most);
          }
        }
}

TEST_CASE("what ranks compute on all tokens alike, or on a share of them, is what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  using strategy::MoeSchedule;
  for (const char* family : {"mixtral", "deepseek_v3", "qwen2_moe"})
    for (Shape shape : kShapes)
      for (const int64_t expert_ranks : {1, 2})
        for (const MoeSchedule schedule : {MoeSchedule::kPlain, MoeSchedule::kParmBaseline,
                                           MoeSchedule::kParmS1, MoeSchedule::kMontaO1})
          for (const bool in_parts : {false, true}) {
            if (shape.sequences * shape.sequence % 2 != 0) continue;
            // The auxiliary loss of parts of sequences takes for a moment what is not predicted.
            if (schedule == MoeSchedule::kParmS1 && shape.sequences % 2 != 0) continue;
            if (schedule == MoeSchedule::kParmBaseline && expert_ranks == 1) continue;
            shape.family = family;
            INFO("family ", std::string(family), " schedule ",
                 std::string(strategy::name(schedule)));
            CAPTURE(shape.sequence);
            CAPTURE(expert_ranks);
            CAPTURE(in_parts);
            Bench bench(shape, 1, {}, 0.001, 0, strategy::AllToAll::kFlat, 2, expert_ranks, false,
                        schedule);
            if (in_parts) bench.divide_backwards();
            bench.mixture(1);
            if (std::string_view(family) != "mixtral" && !in_parts) bench.shared();
            if (!in_parts) bench.head();
          }
}

TEST_CASE("experts whose matrices ranks share keep and need what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (const Shape& shape : kShapes)
    for (const int64_t ranks : {2, 4})
      for (const int64_t ep : {1, 3})
        for (const auto schedule :
             {strategy::MoeSchedule::kPlain, strategy::MoeSchedule::kParmBaseline})
          for (const bool in_parts : {false, true}) {
            INFO("family ", std::string(shape.family), " sequence ", shape.sequence);
            CAPTURE(ranks);
            CAPTURE(ep);
            INFO("schedule ", std::string(strategy::name(schedule)));
            Bench bench(shape, ep, {}, 0, 0, strategy::AllToAll::kFlat, 1, ranks, true, schedule);
            if (in_parts) bench.divide_backwards();
            bench.mixture(ep);
          }
}

TEST_CASE("a head whose logits come in chunks keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  REQUIRE(cost::head_chunk_rows(kLargeVocabulary.vocabulary, 105) < 105);
  Bench(kLargeVocabulary, 1).head();
  Bench(kLargeVocabulary, 1, {}, 0, 1).mtp_join_and_head();
  Shape shared = kLargeVocabulary;
  shared.family = "mixtral";
  Bench(shared, 1, {}, 0, 0, strategy::AllToAll::kFlat, 2, 1, false).head();
}

TEST_CASE("a dense MLP keeps and needs what cost predicts") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  for (Shape shape : kShapes) {
    shape.family = "llama";
    Bench(shape, 1).dense();
    shape.ffn = 300;
    Bench(shape, 1).dense();
  }
}

TEST_CASE("a backward in two parts keeps and needs what cost predicts of each") {
  install_counting_allocator();
  const AllocatingRank as(kRank);
  const auto divided = [](const Shape& shape, auto run, int64_t ep = 1, int64_t mtp_depth = 0,
                          strategy::AllToAll exchange = strategy::AllToAll::kFlat) {
    INFO("family ", std::string(shape.family), " sequence ", shape.sequence, " ep ", ep);
    Bench bench(shape, ep, {}, 0, mtp_depth, exchange);
    bench.divide_backwards();
    run(bench);
  };
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "qwen2_moe"})
    for (Shape shape : kShapes) {
      shape.family = family;
      divided(shape, [&](Bench& bench) {
        bench.attention();
        bench.mixture(1);
        if (std::string_view(family).starts_with("deepseek") ||
            std::string_view(family) == "qwen2_moe")
          bench.shared();
      });
      divided(
          shape, [](Bench& bench) { bench.mixture(3); }, 3);
      divided(
          shape, [](Bench& bench) { bench.mixture_of_tokens(3); }, 3, 0,
          strategy::AllToAll::kHaloDedup);
    }
  for (Shape shape : kShapes) {
    divided(
        shape, [](Bench& bench) { bench.mtp_join_and_head(); }, 1, 1);
    shape.family = "llama";
    divided(shape, [](Bench& bench) { bench.dense(); });
  }
}

}  // namespace
}  // namespace piper::nn
