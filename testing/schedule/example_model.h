// Small models and strategies for tests, and what is wrong with a step written of them.
#pragma once

#include <piper/graph/graph.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::schedule::example {

// The first thing that is wrong with a graph; "" where nothing is.
inline std::string first_problem(const graph::Graph& graph) {
  const std::vector<std::string> problems = graph::validate(graph);
  return problems.empty() ? "" : problems.front();
}

// `experts` by layer; 0: a dense layer.
inline model::Model model(const std::vector<int64_t>& experts, bool tied = false) {
  model::Model m;
  m.name = "example";
  m.tied_embeddings = tied;
  m.hidden = 4;
  m.layers.resize(experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    m.layers[i].feed_forward.num_experts = experts[i];
    m.layers[i].feed_forward.ffn = 4;
  }
  return m;
}

inline strategy::Strategy strategy(
    strategy::Mesh mesh, int64_t layers, int64_t num_micro_batches,
    strategy::PipelineSchedule schedule = strategy::PipelineSchedule::k1F1B,
    strategy::Recompute recompute = strategy::Recompute::kNone) {
  strategy::Strategy s;
  s.mesh = mesh;
  s.layers_per_stage = strategy::even_split(layers, mesh.pp);
  s.schedule = schedule;
  s.recompute = recompute;
  s.sequence = 16;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = num_micro_batches;
  s.global_batch_sequences = mesh.dp * num_micro_batches;
  return s;
}

}  // namespace piper::schedule::example
