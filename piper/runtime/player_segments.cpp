// Compute tasks: which function of the stage a segment is, and which slots are its arguments (the table in
// schedule/step.h).
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/runtime/player.h>

#include <numeric>

namespace piper::runtime {

using graph::Phase;
using graph::Task;
using schedule::Segment;
using schedule::SegmentKind;
using schedule::SlotKind;

Player::SlotValue* Player::find_read(const Task& task, SlotKind kind) {
  for (const graph::SlotId slot : step_.graph.reads(task))
    if (step_.meaning(slot).kind == kind) return &value(slot);
  return nullptr;
}

Player::SlotValue* Player::find_write(const Task& task, SlotKind kind) {
  for (const graph::SlotId slot : step_.graph.writes(task))
    if (step_.meaning(slot).kind == kind) return &value(slot);
  return nullptr;
}

void Player::put(const Task& task, SlotKind kind, at::Tensor tensor) {
  SlotValue* slot = find_write(task, kind);
  PIPER_CHECK(slot != nullptr, "no slot to write in " + schedule::task_name(step_, task));
  slot->tensor = std::move(tensor);
}

nn::Tape* Player::new_tape(const Task& task) {
  SlotValue* slot = find_write(task, SlotKind::kTape);
  if (slot == nullptr) return nullptr;  // nothing will be differentiated
  slot->tape = std::make_unique<nn::Tape>();
  return slot->tape.get();
}

nn::Routing& Player::routing_of(const Task& task) {
  SlotValue* slot = find_read(task, SlotKind::kRouting);
  PIPER_CHECK(slot != nullptr && slot->routing != nullptr,
              "no routing for " + schedule::task_name(step_, task));
  return *slot->routing;
}

const MicroBatch& Player::batch_of(const Task& task) const {
  return micro_batches_[static_cast<size_t>(task.micro_batch)];
}

int64_t Player::positions(int32_t layer) const {
  return model_.positions(layer, strategy_.sequence);
}

void Player::run_segment(const Task& task) {
  const Segment& segment = step_.segment(task);
  switch (task.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return run_forward(task, segment);
    case Phase::kBackward:
      return run_backward(task, segment);
    case Phase::kBackwardInput:
    case Phase::kBackwardWeights:
      break;  // strategy::not_runnable
    case Phase::kUpdate:
      return run_update(task, segment);
  }
  PIPER_CHECK(false, "no segment runs in parts: " + schedule::task_name(step_, task));
}

namespace {

// The tensor of the first read of any of the kinds: with one expert rank the exchanges vanish and a neighbour's slot
// stands in (rows for received rows, ...).
template <class Find>
const at::Tensor& first_of(Find find, std::initializer_list<SlotKind> kinds) {
  for (const SlotKind kind : kinds)
    if (auto* slot = find(kind)) return slot->tensor;
  PIPER_CHECK(false, "a compute task lacks a tensor to read");
  __builtin_unreachable();
}

}  // namespace

void Player::run_forward(const Task& task, const Segment& segment) {
  const auto tensor = [&](std::initializer_list<SlotKind> kinds) -> const at::Tensor& {
    return first_of([&](SlotKind kind) { return find_read(task, kind); }, kinds);
  };
  const int32_t layer = segment.layer;
  switch (segment.kind) {
    case SegmentKind::kEmbedding:
      return put(task, SlotKind::kHidden, stage_.embedding_forward(batch_of(task).tokens_BS));
    case SegmentKind::kAttention:
      return put(task, SlotKind::kHidden,
                 stage_.attention_forward(layer, tensor({SlotKind::kHidden}), positions(layer),
                                          new_tape(task)));
    case SegmentKind::kDenseMlp:
      return put(task, SlotKind::kHidden,
                 stage_.dense_mlp_forward(layer, tensor({SlotKind::kHidden}), new_tape(task)));
    case SegmentKind::kSharedExperts:
      return put(task, SlotKind::kHidden,
                 stage_.shared_forward(layer, tensor({SlotKind::kHidden}), new_tape(task)));
    case SegmentKind::kGate: {
      auto routing = std::make_unique<nn::Routing>();
      put(task, SlotKind::kRows,
          stage_.gate_forward(layer, tensor({SlotKind::kHidden}), positions(layer), *routing,
                              new_tape(task)));
      if (task.phase == Phase::kRecompute && strategy_.mesh.ep > 1 &&
          !strategy::deduplicates(strategy_))
        routing->received_counts = received_counts_.at({layer, task.micro_batch});
      if (task.phase == Phase::kForward) routed_rows_[{layer, task.micro_batch}] = routing->counts;
      find_write(task, SlotKind::kRouting)->routing = std::move(routing);
      return;
    }
    case SegmentKind::kExperts: {
      const nn::Routing& routing = routing_of(task);
      if (task.phase == Phase::kForward)
        received_rows_[layer] += std::accumulate(routing.received_counts.begin(),
                                                 routing.received_counts.end(), int64_t{0});
      return put(task, SlotKind::kExpertRows,
                 stage_.experts_forward(layer, tensor({SlotKind::kReceived, SlotKind::kRows}),
                                        routing, new_tape(task)));
    }
    case SegmentKind::kMerge: {
      // Reads the rows back, then x1 (the only kHidden).
      return put(task, SlotKind::kHidden,
                 stage_.merge_forward(layer, tensor({SlotKind::kReturned, SlotKind::kExpertRows}),
                                      routing_of(task), tensor({SlotKind::kHidden})));
    }
    case SegmentKind::kHead:
      if (layer >= 0)
        return stage_.mtp_head_forward(layer, tensor({SlotKind::kHidden}), batch_of(task).targets_T,
                                       new_tape(task));
      return stage_.head_forward(tensor({SlotKind::kHidden}), batch_of(task).targets_T,
                                 new_tape(task));
    case SegmentKind::kMtpJoin:
      return put(
          task, SlotKind::kHidden,
          stage_.mtp_join_forward(layer, tensor({SlotKind::kHidden}), batch_of(task).tokens_BS));
    case SegmentKind::kDenseGradients:
    case SegmentKind::kExpertGradients:
    case SegmentKind::kTiedEmbedding:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kStatistics:
    case SegmentKind::kOptimizer:
    case SegmentKind::kTensor:
    case SegmentKind::kContext:
    case SegmentKind::kWeights:
    case SegmentKind::kHostCopy:
    case SegmentKind::kMessageWait:
      PIPER_CHECK(false, "not a forward segment");
  }
}

void Player::run_backward(const Task& task, const Segment& segment) {
  const auto tensor = [&](std::initializer_list<SlotKind> kinds) -> const at::Tensor& {
    return first_of([&](SlotKind kind) { return find_read(task, kind); }, kinds);
  };
  const auto hidden = [&](size_t i) -> const at::Tensor& {  // the i-th kHidden among the reads
    for (const graph::SlotId slot : step_.graph.reads(task))
      if (step_.meaning(slot).kind == SlotKind::kHidden && i-- == 0) return value(slot).tensor;
    PIPER_CHECK(false, "a backward task lacks an activation");
    __builtin_unreachable();
  };
  const auto tape = [&]() -> nn::Tape& {
    SlotValue* slot = find_read(task, SlotKind::kTape);
    PIPER_CHECK(slot != nullptr && slot->tape != nullptr,
                "no tape for " + schedule::task_name(step_, task));
    return *slot->tape;
  };
  const int32_t layer = segment.layer;
  switch (segment.kind) {
    case SegmentKind::kEmbedding:
      return stage_.embedding_backward(batch_of(task).tokens_BS,
                                       tensor({SlotKind::kHiddenGradient}));
    case SegmentKind::kAttention:
      return put(task, SlotKind::kHiddenGradient,
                 stage_.attention_backward(layer, tensor({SlotKind::kHiddenGradient}), hidden(0),
                                           hidden(1), positions(layer), tape()));
    case SegmentKind::kDenseMlp:
      return put(
          task, SlotKind::kHiddenGradient,
          stage_.dense_mlp_backward(layer, tensor({SlotKind::kHiddenGradient}), hidden(0), tape()));
    case SegmentKind::kSharedExperts:
      return put(
          task, SlotKind::kHiddenGradient,
          stage_.shared_backward(layer, tensor({SlotKind::kHiddenGradient}), hidden(0), tape()));
    case SegmentKind::kGate:
      return put(task, SlotKind::kHiddenGradient,
                 stage_.gate_backward(
                     layer, tensor({SlotKind::kRowsGradient, SlotKind::kReceivedGradient}),
                     tensor({SlotKind::kRoutingGradient}), tensor({SlotKind::kHiddenGradient}),
                     hidden(0), routing_of(task), tape()));
    case SegmentKind::kExperts: {
      const SlotKind written = find_write(task, SlotKind::kReceivedGradient)
                                   ? SlotKind::kReceivedGradient
                                   : SlotKind::kRowsGradient;
      return put(task, written,
                 stage_.experts_backward(
                     layer, tensor({SlotKind::kExpertRowsGradient, SlotKind::kReturnedGradient}),
                     tensor({SlotKind::kReceived, SlotKind::kRows}), routing_of(task), tape()));
    }
    case SegmentKind::kMerge: {
      const bool deduplicates = strategy::deduplicates(strategy_);
      nn::Stage::MergeGradients gradients = stage_.merge_backward(
          layer, tensor({SlotKind::kHiddenGradient}),
          deduplicates ? at::Tensor() : tensor({SlotKind::kReturned, SlotKind::kExpertRows}),
          routing_of(task));
      if (deduplicates)
        return put(task, SlotKind::kReturnedGradient, std::move(gradients.returned));
      put(task, SlotKind::kReturnedGradient, std::move(gradients.returned));
      return put(task, SlotKind::kRoutingGradient, std::move(gradients.weights));
    }
    case SegmentKind::kHead:
      return put(task, SlotKind::kHiddenGradient,
                 layer >= 0 ? stage_.mtp_head_backward(layer, hidden(0), tape())
                            : stage_.head_backward(hidden(0), batch_of(task).targets_T, tape()));
    case SegmentKind::kMtpJoin:  // reads two gradients: of the module's input, and from the head
      return put(task, SlotKind::kHiddenGradient,
                 stage_.mtp_join_backward(layer, read(task, 0).tensor, read(task, 1).tensor,
                                          hidden(0), batch_of(task).tokens_BS));
    case SegmentKind::kDenseGradients:
    case SegmentKind::kExpertGradients:
    case SegmentKind::kTiedEmbedding:
    case SegmentKind::kGradientNorm:
    case SegmentKind::kStatistics:
    case SegmentKind::kOptimizer:
    case SegmentKind::kTensor:
    case SegmentKind::kContext:
    case SegmentKind::kWeights:
    case SegmentKind::kHostCopy:
    case SegmentKind::kMessageWait:
      PIPER_CHECK(false, "not a backward segment");
  }
}

void Player::run_update(const Task& task, const Segment& segment) {
  if (segment.kind == SegmentKind::kGradientNorm) return update_->local_statistics(statistics_);
  PIPER_CHECK(segment.kind == SegmentKind::kOptimizer,
              "no update called " + schedule::task_name(step_, task));
  update_->apply(statistics_);
}

}  // namespace piper::runtime
