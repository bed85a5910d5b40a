// What the parts of an executor share: the objects of the run that it works on, and what the step
// under way has brought so far. Thread safety: all of it belongs to the rank's thread.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/collective/topology.h>
#include <piper/comm/operations.h>
#include <piper/executor/gradient_shares.h>
#include <piper/executor/host_memory.h>
#include <piper/executor/weight_shares.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::executor {

// Token ids and targets of one micro-batch on this rank. Only the last stage reads targets; tokens
// the first, and the last for modules of multi-token prediction.
struct MicroBatch {
  at::Tensor tokens_BS;  // int64
  at::Tensor targets_T;  // int64, -100 = ignored
};

// The update at the end of a step, which train/ supplies: plain callables that the graph's last
// compute tasks run.
struct Update {
  // Fills this rank's share of the statistics; they are then summed over the world.
  std::function<void(std::span<double> statistics)> local_statistics;
  // Reads the sums; clips and updates the parameters.
  std::function<void(std::span<const double> statistics)> apply;
  int64_t num_statistics = 0;
  // If optimizer states are offloaded, host_states returns where the host keeps a layer's (flat,
  // bytes), and update_layer updates the layer once they are on the device; if it is empty, nothing
  // is updated.
  std::function<at::Tensor(int32_t layer)> host_states;
  std::function<void(int32_t layer, const at::Tensor& states)> update_layer;
  // A migration's graph (schedule/migration.h) calls these: the first returns the state that a
  // segment's task moves, contiguous, the second stores what came (bytes of the same).
  std::function<at::Tensor(graph::SegmentId)> take_expert;
  std::function<void(graph::SegmentId, const at::Tensor& state)> put_expert;
};

struct ExecutorOptions {
  double timeout_seconds = 120;  // without any progress on this rank
  // Called after every task; for measuring memory over time. Returns this rank's live bytes.
  std::function<int64_t()> live_bytes;
  // Where the ranks of the run sit, for exchanges that know nodes (Strategy::all_to_all). Null:
  // every rank is a node of its own. Outlives the executor.
  const collective::Topology* topology = nullptr;
  // Called before every task, with its name; for telling what a rank was doing. May be empty.
  std::function<void(int64_t step, const std::string& task)> note;
  // Where the stage's tensors are. Beside the host's transport, which brings counts and statistics,
  // the same rank's endpoint for tensors (comm/device_transport.h); null: the host's as well.
  at::Device device = at::kCPU;
  comm::Transport* device_transport = nullptr;
  // It has every layer of the graph whose experts have copies, as they are when a step begins; it
  // outlives the executor. Null: no expert has any.
  const balance::Placements* placements = nullptr;
  // It has all gradients that the graph divides, and outlives the executor. Null: it divides none.
  GradientShares* gradient_shares = nullptr;
  // It has all weights that the graph divides, and experts that travel as residuals; it outlives
  // the executor. Null: there are none.
  const WeightShares* weight_shares = nullptr;
  // It has by layer what own_residuals() found after the update of experts that travel as
  // residuals; it outlives the executor. If a layer is not here, its gather calls own_residuals()
  // itself.
  const std::map<int32_t, at::Tensor>* residuals = nullptr;
  // Where what the graph copies to the host lives; outlives the executor. Null: it copies nothing.
  HostMemory* host_memory = nullptr;
};

// The objects of a run that one rank's executor works on; they outlive it.
struct ExecutorContext {
  const schedule::StepGraph& step;
  const strategy::Strategy& strategy;
  const model::Model& model;
  Rank rank;
  nn::Stage& stage;
  comm::Transport& transport;  // of counts and statistics
  comm::Transport& tensors;    // of tensors
  ExecutorOptions options;
  at::ScalarType dtype;  // of hidden states

  bool is_on_device() const { return !options.device.is_cpu(); }
  // The members of the task's group, and this rank among them (PIPER_CHECK).
  comm::Group group_of(const graph::Task& task) const;
  // Where these members sit, as far as `options.topology` says.
  collective::Topology topology_of(const comm::Group& group) const;
  at::Tensor empty(std::vector<int64_t> shape) const;
  // Allocates in the device's memory, in the current stream. Empty on the CPU, where such scratch
  // space is not counted.
  comm::Allocate device_scratch() const;
  comm::Allocate counted_scratch() const;
};

// By layer and micro-batch; of one of a layer's chunks, with Segment::chunk.
using LayerKey = std::pair<int32_t, int32_t>;
using ChunkKey = std::tuple<int32_t, int32_t, int16_t>;

// It belongs to the step under way: what that was given, and what one part leaves for another.
struct StepState {
  int64_t number = 0;
  std::span<const MicroBatch> micro_batches;
  const Update* update = nullptr;
  std::vector<double> statistics;
  // Counts received in a micro-batch's forward, kept for its recomputation.
  std::map<ChunkKey, std::vector<int64_t>> received_counts, shared_counts;
  // See Executor.
  std::map<LayerKey, std::vector<int64_t>> routed_rows, distinct_tokens;
  std::map<int32_t, int64_t> received_rows;
  // Messages of all owners of a layer's experts, on their way as residuals.
  std::map<int32_t, at::Tensor> residuals;
};

}  // namespace piper::executor
