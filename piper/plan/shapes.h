// Every way to divide the devices that the model, the batch and the user's fixed axes allow: what
// search.cpp prices.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace piper::plan {

// What a way to cut a stage's ranks and a micro-batch come to: everything that layer prices depend
// on, and the depth.
struct Shape {
  int64_t pp, tp, cp, dp, ep, etp, micro;
  bool sequence_parallel;
};

// Empty when the fixed axes leave none. tp stays inside a node unless it is fixed.
std::vector<Shape> shapes_of(const Request& request);

// Whether an axis that may be fixed may have the value.
template <class T>
bool wanted(const std::optional<T>& fixed, T value) {
  return !fixed || *fixed == value;
}

inline constexpr int64_t kMostChunks = 8;

// What is tried of a shape besides, fixed or free. Reads the strategy's mesh, schedule and count of
// micro-batches; rules of a trainer, and ZeRO, also what else is set of it so far.
bool tries_schedule(const Request& r, const strategy::Strategy& s,
                    strategy::PipelineSchedule schedule);
bool tries_chunks(const Request& r, const strategy::Strategy& s, int64_t vpp);
bool tries_zero(const Request& r, const strategy::Strategy& s, int64_t zero);
// FixedAxes::expert_compression, where experts' weights are sent once a step; else 1.
int64_t compression_of(const Request& r, const strategy::Strategy& s);
// Activations are copied while other micro-batches are in flight: not without a pipeline.
bool tries_offload(const Request& r, const strategy::Strategy& s, strategy::Offload offload);
bool tries_placement(const Request& r, const strategy::Strategy& s, strategy::Placement placement);

// The mesh and the batch of a shape.
strategy::Strategy with_shape(const Request& r, const Shape& shape);

// Expert degrees that divide the experts of every mixture layer, ascending; {1} for a dense model.
std::vector<int64_t> expert_degrees(const model::Model& model);

// Devices of the paper's fast domain, g x N_h of eq. 10: a unit of the level "switch_group" where
// the cluster has one, else a node.
int64_t fast_domain(const cluster::Cluster& cluster);

}  // namespace piper::plan
