// What the slots of one rank hold, from the task that writes one to the task behind which its life
// ends.
#pragma once

#include <piper/executor/gradient_shares.h>
#include <piper/nn/stage.h>
#include <piper/schedule/step.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace piper::executor {

struct SlotValue {
  at::Tensor tensor;
  std::unique_ptr<nn::Routing> routing;
  std::unique_ptr<nn::Tape> tape;
  at::Tensor sent;  // while an exchange is under way: what it reads in place of a slot
};

std::array<at::Tensor*, 8> tensors_of(nn::Routing& routing);

// In an order that depends on what the value is alone.
template <class F>
void for_each_tensor(SlotValue& value, F visit) {
  visit(value.tensor);
  if (value.tape != nullptr)
    for (at::Tensor& saved : value.tape->saved) visit(saved);
  if (value.routing == nullptr) return;
  for (at::Tensor* tensor : tensors_of(*value.routing)) visit(*tensor);
}

// The stage's buffer that a slot of kind kGradients stands for.
GradientShares::Key gradient_buffer_of(const schedule::SlotMeaning& gradients);

// One thread. The graph and the stage outlive it.
class SlotStore {
 public:
  SlotStore(const schedule::StepGraph& step, Rank rank, nn::Stage& stage);

  // A slot of this rank; the i-th slot that the task reads or writes.
  SlotValue& value(graph::SlotId slot) {
    return values_[static_cast<size_t>(local_slot_[slot.index()])];
  }
  SlotValue& read(const graph::Task& task, size_t i) { return value(step_.graph.reads(task)[i]); }
  SlotValue& write(const graph::Task& task, size_t i) { return value(step_.graph.writes(task)[i]); }
  // The first slot of a kind; nullptr when there is none.
  SlotValue* find(std::span<const graph::SlotId> slots, schedule::SlotKind kind);
  // These return the routing of the first chunk that the task reads (PIPER_CHECK: there is one),
  // and those of all chunks.
  nn::Routing& routing_of(const graph::Task& task);
  std::vector<nn::Routing*> routings_of(const graph::Task& task);

  // Divided gradients: the buffers that the task writes take memory.
  void hold_gradients(const graph::Task& task);
  // Gives back what the slot holds, and the memory of the stage's buffer that it stands for.
  void free(graph::SlotId slot);

 private:
  const schedule::StepGraph& step_;
  nn::Stage& stage_;
  std::vector<int32_t> local_slot_;  // by SlotId; -1 on other ranks
  std::vector<SlotValue> values_;
};

}  // namespace piper::executor
