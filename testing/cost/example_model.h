// Shapes small enough to compute by hand, for the tests of this folder and of those to its right.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::cost::example {

// `layers` layers of d 8: 2 heads of 4, 1 key-value head, 4 experts of 16 (top 2), vocabulary 32.
inline model::Model mixture(int64_t layers, bool tied = false) {
  model::Layer layer;
  layer.attention = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 4};
  layer.feed_forward = {.ffn = 16, .num_experts = 4, .top_k = 2};
  model::Model model;
  model.name = "example";
  model.hidden = 8;
  model.vocabulary = 32;
  model.tied_embeddings = tied;
  model.layers.assign(static_cast<size_t>(layers), layer);
  return model;
}

// Nodes of 4 devices with 2 NICs of 10 GB/s, in groups of 2, of which there are 2. 1 TFLOP/s, all
// of it reached by GEMMs; 100 GB/s of memory; starting an operation costs nothing.
inline cluster::Cluster nodes() {
  cluster::Cluster c;
  c.name = "nodes";
  c.kind = "gpu";
  c.memory_bytes = int64_t{1} << 30;
  c.memory_bytes_per_second = 100e9;
  for (const char* precision : {"fp32", "bf16", "fp64"})
    c.compute[precision] = {.peak_flops_per_second = 1e12, .gemm_efficiency = 1};
  c.levels = {{.name = "node", .num_members = 4, .link = {1e-6, 100e9}},
              {.name = "group",
               .num_members = 2,
               .link = {5e-6, 50e9},
               .num_nics = 2,
               .nic_bytes_per_second = 10e9},
              {.name = "system", .num_members = 2, .link = {10e-6, 2e9}}};
  c.numbers["message_gap_seconds"] = 0;
  return c;
}

inline strategy::Strategy strategy(const model::Model& model, int64_t pp, int64_t ep, int64_t dp,
                                   int64_t num_micro_batches = 4) {
  strategy::Strategy s;
  s.model = model.name;
  s.mesh = {.pp = pp, .ep = ep, .dp = dp};
  s.layers_per_stage = strategy::even_split(model.num_layers(), pp);
  s.mtp_depth = model.mtp_depth;
  s.sequence = 16;
  s.micro_batch_sequences = 2;
  s.num_micro_batches = num_micro_batches;
  s.global_batch_sequences = dp * s.micro_batch_sequences * num_micro_batches;
  return s;
}

}  // namespace piper::cost::example
