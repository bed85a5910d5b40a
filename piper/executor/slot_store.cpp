#include <piper/base/error.h>
#include <piper/executor/slot_store.h>

namespace piper::executor {

using graph::Task;
using schedule::SlotKind;

std::array<at::Tensor*, 8> tensors_of(nn::Routing& routing) {
  return {&routing.weights,          &routing.token,
          &routing.position,         &routing.sequence_counts,
          &routing.received_row,     &routing.received_position,
          &routing.received_weights, &routing.g_received_weights};
}

GradientShares::Key gradient_buffer_of(const schedule::SlotMeaning& gradients) {
  return {gradients.segment.layer,
          schedule::axis_of(graph::TaskKind::kReduceScatter, gradients.segment.kind)};
}

SlotStore::SlotStore(const schedule::StepGraph& step, Rank rank, nn::Stage& stage)
    : step_(step), stage_(stage), local_slot_(step.graph.slots().size(), -1) {
  int32_t num_slots = 0;
  for (size_t i = 0; i < step.graph.slots().size(); ++i)
    if (step.graph.slots()[i].rank == rank) local_slot_[i] = num_slots++;
  values_.resize(static_cast<size_t>(num_slots));
}

SlotValue* SlotStore::find(std::span<const graph::SlotId> slots, SlotKind kind) {
  for (const graph::SlotId slot : slots)
    if (step_.meaning(slot).kind == kind) return &value(slot);
  return nullptr;
}

nn::Routing& SlotStore::routing_of(const Task& task) {
  SlotValue* slot = find(step_.graph.reads(task), SlotKind::kRouting);
  PIPER_CHECK(slot != nullptr && slot->routing != nullptr,
              "no routing for " + schedule::task_name(step_, task));
  return *slot->routing;
}

std::vector<nn::Routing*> SlotStore::routings_of(const Task& task) {
  std::vector<nn::Routing*> chunks;
  for (const graph::SlotId slot : step_.graph.reads(task))
    if (step_.meaning(slot).kind == SlotKind::kRouting) chunks.push_back(value(slot).routing.get());
  return chunks;
}

void SlotStore::hold_gradients(const Task& task) {
  for (const graph::SlotId slot : step_.graph.writes(task)) {
    const schedule::SlotMeaning& meaning = step_.meaning(slot);
    if (meaning.kind != SlotKind::kGradients) continue;
    const auto [layer, axis] = gradient_buffer_of(meaning);
    value(slot).tensor = stage_.hold_gradients(layer, axis);
  }
}

void SlotStore::free(graph::SlotId slot) {
  value(slot) = SlotValue{};
  const schedule::SlotMeaning& meaning = step_.meaning(slot);
  if (meaning.kind == SlotKind::kGradients) {
    const auto [layer, axis] = gradient_buffer_of(meaning);
    stage_.release_gradients(layer, axis);
  } else if (meaning.kind == SlotKind::kWeights) {
    stage_.release_weights(meaning.segment.layer,
                           schedule::axis_of(graph::TaskKind::kAllGather, meaning.segment.kind));
  }
}

}  // namespace piper::executor
