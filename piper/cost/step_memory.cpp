// The memory half of the Estimator: lives of slots from layer_memory.h, strung together stage by
// stage.
#include <piper/cost/shard.h>
#include <piper/cost/step_time.h>

namespace piper::cost {

using strategy::Strategy;

namespace {

// The head and the modules of multi-token prediction behind it, forward and back
// (schedule/heads.h).
template <class LayerOf>
void walk_heads(const EndCost& ends, LayerOf layer, StageWalk& walk) {
  walk.head_forward(ends.head);
  for (const HeadCost& module : ends.modules) {
    walk.join_forward(module);
    walk.layer_forward(layer(module.layer));
    walk.head_forward(module);
  }
  const std::vector<HeadCost>& modules = ends.modules;
  for (size_t i = modules.size();; --i) {
    const HeadCost& head = i > 0 ? modules[i - 1] : ends.head;
    walk.head_backward(head, i < modules.size());
    if (i < modules.size()) walk.join_backward(modules[i], head);
    if (i == 0) return;
    walk.layer_backward(layer(head.layer));
  }
}

}  // namespace

cluster::Cluster with_some_speed(cluster::Cluster cluster, strategy::Precision precision) {
  cluster.compute.try_emplace(strategy::name(precision),
                              cluster::Compute{.peak_flops_per_second = 1, .gemm_efficiency = 1});
  return cluster;
}

StageMemory Estimator::stage_memory(const Strategy& s, int64_t index, int64_t first_layer) {
  std::vector<int32_t> layers;
  const int64_t own_end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  for (int64_t i = first_layer; i < own_end; ++i) layers.push_back(static_cast<int32_t>(i));
  StageMemory fullest;
  for (const int64_t ep_index : costs_.fullest_ep_indices(s, layers)) {
    const StageMemory memory = stage_memory(s, index, first_layer, ep_index);
    if (memory.total() > fullest.total()) fullest = memory;
  }
  return fullest;
}

StageMemory Estimator::stage_memory(const Strategy& s, int64_t index, int64_t first_layer,
                                    int64_t ep_index) {
  const EndCost& ends = costs_.ends(s.micro_batch_sequences);
  const int64_t end = first_layer + s.layers_per_stage[static_cast<size_t>(index)];
  const auto layer = [&](int64_t i) -> LayerMemory {
    if (!costs_.is_balanced()) return costs_.memory(static_cast<int32_t>(i), s, ep_index);
    return costs_
        .layer(costs_.type_of(static_cast<int32_t>(i)), s.micro_batch_sequences, s.mesh,
               s.capacity.factor, form_of(s))
        .with(s.recompute)
        .memory;
  };
  StageWalk walk(ends.hidden_bytes);
  for (int64_t i = first_layer; i < end; ++i) walk.layer_forward(layer(i));
  const bool last = index == s.mesh.pp - 1;
  if (last)
    walk_heads(ends, layer, walk);
  else
    walk.transfer(ends.hidden_bytes);
  for (int64_t i = end; i-- > first_layer;) walk.layer_backward(layer(i));

  const StateBytes bytes = state_bytes(precision_);
  const int64_t held = parameters(s, index, first_layer).total();
  StageMemory memory{
      .weights = held * bytes.weight,
      .gradients = held * bytes.gradient,
      .optimizer = optimized(s, index, first_layer) * bytes.optimizer,
      .working = walk.walked().peak,
      .in_flight = micro_batches_in_flight(s.schedule, s.mesh.pp, index, s.num_micro_batches)};
  memory.activations = walk.kept() * (memory.in_flight - 1);
  for (int64_t i = first_layer; i < end; ++i)
    memory.exchange_scratch =
        std::max(memory.exchange_scratch,
                 costs_
                     .layer(costs_.type_of(static_cast<int32_t>(i)), s.micro_batch_sequences,
                            s.mesh, s.capacity.factor, form_of(s))
                     .exchange_scratch);
  if (s.mesh.pp > 1) memory.messages = (index > 0 && !last ? 3 : 2) * ends.hidden_bytes;
  return memory;
}

std::vector<StageMemory> Estimator::memory(const Strategy& s) {
  std::vector<StageMemory> stages;
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.pp; first += s.layers_per_stage[static_cast<size_t>(i++)])
    stages.push_back(stage_memory(s, i, first));
  return stages;
}

}  // namespace piper::cost
