// The memory half of the Estimator: lives of slots from layer_memory.h, strung together stage by
// stage; of several chunks a rank and divided backwards from a walk (walked_memory.h).
#include <piper/cost/bubble.h>
#include <piper/cost/shard.h>
#include <piper/cost/step_time.h>
#include <piper/cost/walked_memory.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/strategy/rank_layout.h>

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

// Of one rank of each ep index that may be the fullest.
StageMemory Estimator::rank_memory(const Strategy& s, int64_t pp_rank) {
  std::vector<int32_t> layers;
  int64_t held = 0;
  for (const schedule::RankChunk& chunk : schedule::chunks_of(s, pp_rank)) {
    for (int32_t i = 0; i < chunk.num_layers; ++i) layers.push_back(chunk.first_layer + i);
    held += parameters(s, chunk.stage, chunk.first_layer).total();
  }
  Strategy walked = s;
  walked.num_micro_batches = micro_batches_to_walk(s);
  walked.global_batch_sequences =
      s.global_batch_sequences / s.num_micro_batches * walked.num_micro_batches;
  const StateBytes bytes = state_bytes(precision_);
  StageMemory fullest;
  for (const int64_t ep_index : costs_.fullest_ep_indices(s, layers)) {
    const Rank rank = strategy::RankLayout(s).rank(pp_rank, ep_index);
    const schedule::StepGraph step = schedule::write_step(model_, walked, {rank});
    StageMemory memory = walked_memory(
        step, price(step, model_, walked, cluster_, load_ == nullptr ? ExpertLoad{} : *load_));
    memory.weights = held * bytes.weight;
    memory.gradients = held * bytes.gradient;
    memory.optimizer = held * bytes.optimizer;
    if (memory.total() > fullest.total()) fullest = memory;
  }
  fullest.in_flight =
      (chunk_forwards_in_flight(s.schedule, s.mesh.pp, s.mesh.vpp, pp_rank, s.num_micro_batches) +
       s.mesh.vpp - 1) /
      s.mesh.vpp;
  for (const int32_t layer : layers)
    fullest.exchange_scratch = std::max(
        fullest.exchange_scratch, costs_
                                      .layer(costs_.type_of(layer), s.micro_batch_sequences, s.mesh,
                                             s.capacity.factor, form_of(s))
                                      .exchange_scratch);
  return fullest;
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
      .optimizer = held * bytes.optimizer,
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
  if (!has_closed_form(s)) {
    for (int64_t i = 0; i < s.mesh.pp; ++i) stages.push_back(rank_memory(s, i));
    return stages;
  }
  int64_t first = 0;
  for (int64_t i = 0; i < s.mesh.pp; first += s.layers_per_stage[static_cast<size_t>(i++)])
    stages.push_back(stage_memory(s, i, first));
  return stages;
}

}  // namespace piper::cost
