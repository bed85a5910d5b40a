#include <piper/base/error.h>
#include <piper/executor/segment_dispatch.h>

#include <algorithm>
#include <numeric>

namespace piper::executor {

using graph::Phase;
using graph::Task;
using schedule::Segment;
using schedule::SegmentKind;
using schedule::SlotKind;

namespace {

nn::Routings read_only(const std::vector<nn::Routing*>& chunks) {
  return {chunks.begin(), chunks.end()};
}

// Reads the slot kHeadOutputs, whose tensors stand where a tape's do.
nn::Stage::HeadOutputs head_outputs_of(const SlotValue& slot) {
  PIPER_CHECK(slot.tape != nullptr && slot.tape->saved.size() == 2, "no outputs of heads");
  return {slot.tape->saved[0], slot.tape->saved[1]};
}

void hold_head_outputs(SlotValue& slot, nn::Stage::HeadOutputs outputs) {
  slot.tape = std::make_unique<nn::Tape>();
  slot.tape->saved = {std::move(outputs.out), std::move(outputs.log_sum_exp)};
}

}  // namespace

SegmentDispatch::SegmentDispatch(const ExecutorContext& context, SlotStore& slots, StepState& state)
    : context_(context),
      step_(context.step),
      strategy_(context.strategy),
      stage_(context.stage),
      slots_(slots),
      state_(state) {}

nn::Tape* SegmentDispatch::new_tape(const Task& task) {
  SlotValue* slot = slots_.find(step_.graph.writes(task), SlotKind::kTape);
  if (slot == nullptr) return nullptr;  // nothing will be differentiated
  slot->tape = std::make_unique<nn::Tape>();
  return slot->tape.get();
}

const at::Tensor& SegmentDispatch::own_part_of_keys(const Task& task) {
  for (const graph::SlotId slot : step_.graph.reads(task)) {
    const schedule::SlotMeaning& of = step_.meaning(slot);
    if (of.kind == SlotKind::kKeysAndValuesGradient && of.segment.kind == SegmentKind::kRingStep)
      return slots_.value(slot).tensor;
  }
  PIPER_CHECK(false, "no gradient of own keys for " + schedule::task_name(step_, task));
}

const MicroBatch& SegmentDispatch::batch_of(const Task& task) const {
  return state_.micro_batches[static_cast<size_t>(task.micro_batch)];
}

void SegmentDispatch::keep_gradients(const Task& task) {
  PIPER_CHECK(context_.options.gradient_shares != nullptr, "no shares of divided gradients");
  for (const graph::SlotId slot : step_.graph.reads(task))
    context_.options.gradient_shares->keep(gradient_buffer_of(step_.meaning(slot)),
                                           slots_.value(slot).tensor);
}

void SegmentDispatch::run(const Task& task) {
  const Segment& segment = step_.segment(task);
  if (segment.kind == SegmentKind::kKeepGradients) return keep_gradients(task);
  if (segment.kind == SegmentKind::kDropWeights) return;  // its slots are freed behind it
  switch (task.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return run_forward(task, segment);
    case Phase::kBackward:
    case Phase::kBackwardInput:
      return run_backward(task, segment);
    case Phase::kBackwardWeights:
      return run_weights(task, segment);
    case Phase::kUpdate:
      return run_update(task, segment);
  }
}

// Below, in(i) is the i-th slot that the task reads and out(i) the i-th that it writes, in the
// order of the table.
void SegmentDispatch::run_forward(const Task& task, const Segment& segment) {
  const auto in = [&](size_t i) -> const at::Tensor& { return slots_.read(task, i).tensor; };
  const auto out = [&](size_t i) -> at::Tensor& { return slots_.write(task, i).tensor; };
  const int32_t layer = segment.layer;
  switch (segment.kind) {
    case SegmentKind::kEmbedding:
      out(0) = stage_.embedding_forward(batch_of(task).tokens_BS);
      return;
    case SegmentKind::kProjection: {
      nn::Stage::Projection made =
          stage_.projection_forward(layer, in(0), strategy_.sequence, new_tape(task));
      out(0) = std::move(made.queries);
      out(1) = std::move(made.keys_and_values);
      return;
    }
    case SegmentKind::kRingStep: {
      const bool is_first = segment.hop == 0;
      hold_head_outputs(slots_.write(task, 0),
                        stage_.ring_step_forward(layer, segment.hop, {in(0), in(1)},
                                                 is_first ? nn::Stage::HeadOutputs{}
                                                          : head_outputs_of(slots_.read(task, 2)),
                                                 strategy_.sequence));
      return;
    }
    case SegmentKind::kAttention:
      if (strategy::has_ring(strategy_)) {
        nn::Stage::HeadOutputs kept;
        out(0) = stage_.ring_attention_forward(layer, in(0), head_outputs_of(slots_.read(task, 1)),
                                               kept);
        hold_head_outputs(slots_.write(task, 1), std::move(kept));
        return;
      }
      if (strategy_.mesh.cp > 1) {
        out(0) = stage_.context_attention_forward(layer, in(0), {in(1), in(2)}, strategy_.sequence,
                                                  new_tape(task));
        return;
      }
      out(0) = stage_.attention_forward(layer, in(0), strategy_.sequence, new_tape(task));
      return;
    case SegmentKind::kDenseMlp:
      out(0) = stage_.dense_mlp_forward(layer, in(0), new_tape(task));
      return;
    case SegmentKind::kSharedExperts:
      out(0) = stage_.shared_forward(layer, in(0), new_tape(task));
      return;
    case SegmentKind::kRouteOnly:
      out(0) = stage_.choose_forward(layer, in(0));
      return;
    case SegmentKind::kGate: {
      const SlotValue* choices = slots_.find(step_.graph.reads(task), SlotKind::kTokenChoices);
      const std::span<const graph::SlotId> writes = step_.graph.writes(task);
      std::vector<nn::Routing> chunks(
          static_cast<size_t>(std::ranges::count_if(writes, [&](graph::SlotId slot) {
            return step_.meaning(slot).kind == SlotKind::kRouting;
          })));
      std::vector<at::Tensor> rows =
          stage_.gate_forward(layer, in(0), choices != nullptr ? choices->tensor : at::Tensor(),
                              strategy_.sequence, chunks, new_tape(task));
      std::vector<int64_t> routed;
      for (size_t c = 0; c < chunks.size(); ++c) {
        nn::Routing& routing = chunks[c];
        const ChunkKey key{layer, task.micro_batch, step_.meaning(writes[2 * c]).segment.chunk};
        const bool exchanges = strategy_.mesh.ep > 1 || strategy::fuses_exchange(strategy_);
        if (task.phase == Phase::kRecompute && exchanges && !strategy::deduplicates(strategy_))
          routing.received_counts = state_.received_counts.at(key);
        if (task.phase == Phase::kRecompute && strategy::gathers_expert_rows(strategy_))
          routing.shared_counts = state_.shared_counts.at(key);
        routed.insert(routed.end(), routing.counts.begin(), routing.counts.end());
        out(2 * c) = std::move(rows[c]);
        slots_.write(task, 2 * c + 1).routing = std::make_unique<nn::Routing>(std::move(routing));
      }
      // Where the device alone has counts, nobody is sent any of these rows.
      if (task.phase == Phase::kForward && !routed.empty())
        state_.routed_rows[{layer, task.micro_batch}] = std::move(routed);
      return;
    }
    case SegmentKind::kExperts: {
      const nn::Routing& routing = slots_.routing_of(task);
      if (task.phase == Phase::kForward)
        state_.received_rows[layer] +=
            routing.counts_E.defined()
                ? in(0).size(0)
                : std::accumulate(routing.computed_counts().begin(),
                                  routing.computed_counts().end(), int64_t{0});
      out(0) = stage_.experts_forward(layer, in(0), routing, new_tape(task));
      return;
    }
    case SegmentKind::kUnpermute: {
      const nn::Routings chunks = read_only(slots_.routings_of(task));
      std::vector<at::Tensor> returned;
      for (size_t c = 0; c < chunks.size(); ++c) returned.push_back(in(2 * c));
      out(0) = stage_.merge_forward(layer, returned, chunks, in(2 * chunks.size()));
      return;
    }
    case SegmentKind::kHead:
      if (layer >= 0)
        return stage_.mtp_head_forward(layer, in(0), batch_of(task).targets_T, new_tape(task));
      return stage_.head_forward(in(0), batch_of(task).targets_T, new_tape(task));
    case SegmentKind::kMtpProjection:
      out(0) = stage_.mtp_join_forward(layer, in(0), batch_of(task).tokens_BS);
      return;
    case SegmentKind::kWait:  // of an evaluation: what was kept is given back
      return;
    default:
      PIPER_CHECK(false, "not a forward segment: " + schedule::task_name(step_, task));
  }
}

void SegmentDispatch::run_backward(const Task& task, const Segment& segment) {
  const auto in = [&](size_t i) -> const at::Tensor& { return slots_.read(task, i).tensor; };
  const auto out = [&](size_t i) -> at::Tensor& { return slots_.write(task, i).tensor; };
  // Where the input's part runs alone, it leaves here what the weights' part will run; the tape
  // moves there.
  SlotValue* deferred = slots_.find(step_.graph.writes(task), SlotKind::kDeferred);
  SlotValue* kept = slots_.find(step_.graph.reads(task), SlotKind::kTape);
  if (deferred != nullptr) {
    deferred->tape = kept != nullptr ? std::move(kept->tape) : std::make_unique<nn::Tape>();
    deferred->tape->defers_weights = true;
  }
  const auto tape = [&]() -> nn::Tape& {
    const SlotValue* slot = deferred != nullptr ? deferred : kept;
    PIPER_CHECK(slot != nullptr && slot->tape != nullptr,
                "no tape for " + schedule::task_name(step_, task));
    return *slot->tape;
  };
  const int32_t layer = segment.layer;
  switch (segment.kind) {
    case SegmentKind::kEmbedding:
      return stage_.embedding_backward(batch_of(task).tokens_BS, in(0));
    case SegmentKind::kRingStep: {
      const bool is_first = segment.hop == 1;  // the own keys come last
      nn::Stage::Projection g = stage_.ring_step_backward(
          layer, segment.hop, in(0), {in(1), in(2)}, head_outputs_of(slots_.read(task, 3)),
          is_first ? at::Tensor() : in(4), strategy_.sequence);
      out(0) = std::move(g.queries);
      out(1) = std::move(g.keys_and_values);
      return;
    }
    case SegmentKind::kAttention:
      if (strategy::has_ring(strategy_)) {
        nn::Tape whole;
        out(0) = stage_.ring_attention_backward(layer, in(0), head_outputs_of(slots_.read(task, 1)),
                                                deferred != nullptr ? *deferred->tape : whole);
        return;
      }
      if (strategy_.mesh.cp > 1) {
        nn::Stage::Projection g = stage_.context_attention_backward(layer, in(0), {in(1), in(2)},
                                                                    strategy_.sequence, tape());
        out(0) = std::move(g.queries);
        out(1) = std::move(g.keys_and_values);
        return;
      }
      out(0) = stage_.attention_backward(layer, in(0), in(1), in(2), strategy_.sequence, tape());
      return;
    case SegmentKind::kProjection:
      if (strategy::has_ring(strategy_))  // of own keys: by the other ranks, and by this one
        slots_.read(task, 1).tensor.add_(own_part_of_keys(task));
      out(0) = stage_.projection_backward(layer, {in(0), in(1)}, in(2), in(3), strategy_.sequence,
                                          tape());
      return;
    case SegmentKind::kDenseMlp:
      out(0) = stage_.dense_mlp_backward(layer, in(0), in(1), tape());
      return;
    case SegmentKind::kSharedExperts:
      out(0) = stage_.shared_backward(layer, in(0), in(1), tape());
      return;
    case SegmentKind::kGate: {
      if (const SlotValue* counts =
              slots_.find(step_.graph.reads(task), SlotKind::kSequenceChoices))
        slots_.routing_of(task).sequence_counts = counts->tensor;
      const nn::Routings chunks = read_only(slots_.routings_of(task));
      std::vector<at::Tensor> g_rows, g_weights;
      for (size_t c = 0; c < chunks.size(); ++c) {
        g_rows.push_back(in(2 * c));
        g_weights.push_back(in(2 * c + 1));
      }
      const size_t behind = 2 * chunks.size();
      out(0) = stage_.gate_backward(layer, g_rows, g_weights, in(behind), in(behind + 1), chunks,
                                    tape());
      return;
    }
    case SegmentKind::kExperts:
      out(0) = stage_.experts_backward(layer, in(0), in(1), slots_.routing_of(task), tape());
      return;
    case SegmentKind::kUnpermute: {
      const bool deduplicates = strategy::deduplicates(strategy_);
      const nn::Routings chunks = read_only(slots_.routings_of(task));
      std::vector<at::Tensor> returned;
      for (size_t c = 0; c < chunks.size(); ++c)
        returned.push_back(deduplicates ? at::Tensor() : in(2 * c + 1));
      std::vector<nn::Stage::MergeGradients> gradients =
          stage_.merge_backward(layer, in(0), returned, chunks);
      for (size_t c = 0; c < chunks.size(); ++c) {
        out(2 * c) = std::move(gradients[c].returned);
        if (!deduplicates) out(2 * c + 1) = std::move(gradients[c].weights);
      }
      return;
    }
    case SegmentKind::kHead:
      out(0) = layer >= 0 ? stage_.mtp_head_backward(layer, in(0), tape())
                          : stage_.head_backward(in(0), batch_of(task).targets_T, tape());
      return;
    case SegmentKind::kMtpProjection: {
      nn::Tape whole;
      out(0) = stage_.mtp_join_backward(layer, in(0), in(1), in(2), batch_of(task).tokens_BS,
                                        deferred != nullptr ? *deferred->tape : whole);
      return;
    }
    default:
      PIPER_CHECK(false, "not a backward segment: " + schedule::task_name(step_, task));
  }
}

void SegmentDispatch::run_weights(const Task& task, const Segment& segment) {
  if (segment.kind == SegmentKind::kEmbedding)
    return stage_.embedding_backward(batch_of(task).tokens_BS, slots_.read(task, 0).tensor);
  SlotValue* deferred = slots_.find(step_.graph.reads(task), SlotKind::kDeferred);
  PIPER_CHECK(deferred != nullptr && deferred->tape != nullptr,
              "nothing was left for " + schedule::task_name(step_, task));
  stage_.weights_backward(*deferred->tape);
}

void SegmentDispatch::run_update(const Task& task, const Segment& segment) {
  if (segment.kind == SegmentKind::kGradientNorm)
    return state_.update->local_statistics(state_.statistics);
  if (segment.kind == SegmentKind::kTakeExpert) {
    slots_.write(task, 0).tensor = state_.update->take_expert(task.segment);
    return;
  }
  if (segment.kind == SegmentKind::kPutExpert)
    return state_.update->put_expert(task.segment, slots_.read(task, 0).tensor);
  if (segment.kind == SegmentKind::kUpdateLayer) {
    if (state_.update->update_layer)
      state_.update->update_layer(segment.layer, slots_.read(task, 0).tensor);
    return;
  }
  PIPER_CHECK(segment.kind == SegmentKind::kOptimizer,
              "no update called " + schedule::task_name(step_, task));
  state_.update->apply(state_.statistics);
}

}  // namespace piper::executor
