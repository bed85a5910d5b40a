// Compute tasks: which function of nn::Stage a segment is, and which slots are its arguments (the
// table in schedule/step.h).
#pragma once

#include <piper/executor/executor_context.h>
#include <piper/executor/slot_store.h>

namespace piper::executor {

// One thread. What it is given outlives it.
class SegmentDispatch {
 public:
  SegmentDispatch(const ExecutorContext& context, SlotStore& slots, StepState& state);

  // Computes, in the stream that libtorch works in. Leaves rows by expert in the step's state.
  void run(const graph::Task& task);

 private:
  void run_forward(const graph::Task& task, const schedule::Segment& segment);
  void run_backward(const graph::Task& task, const schedule::Segment& segment);
  void run_weights(const graph::Task& task, const schedule::Segment& segment);
  void run_update(const graph::Task& task, const schedule::Segment& segment);
  // Divided gradients: what the ranks have summed is added to this rank's shares.
  void keep_gradients(const graph::Task& task);
  nn::Tape* new_tape(const graph::Task& task);
  const at::Tensor& own_part_of_keys(const graph::Task& task);  // that its ring step has left
  const MicroBatch& batch_of(const graph::Task& task) const;

  const ExecutorContext& context_;
  const schedule::StepGraph& step_;
  const strategy::Strategy& strategy_;
  nn::Stage& stage_;
  SlotStore& slots_;
  StepState& state_;
};

}  // namespace piper::executor
