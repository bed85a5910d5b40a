// The graph player in real time, for one rank: segments on tensors through nn::Stage, communication
// through comm. Keeps the rules of sim/play.h, so that the simulated and the executed order are the
// same.
//
// On a device (PlayerOptions::device) a task is done once its work is in the task's stream
// (device_streams.h); the order in which tasks start is the same. The measured times of its tasks
// are those of the streams.
//
// A player's life: made once per run, play() once per step. It owns what the slots hold and gives
// each storage back when the graph says that its life ends.
//
// Thread safety: one player belongs to its rank's thread.
#pragma once

#include <piper/balance/expert_placement.h>
#include <piper/collective/dispatch_combine_counts.h>
#include <piper/comm/operations.h>
#include <piper/executor/cores.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/gradient_shares.h>
#include <piper/executor/host_memory.h>
#include <piper/executor/weight_shares.h>
#include <piper/graph/timeline.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace piper::executor {

class TokenExchange;

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
  // Of layers whose optimizer states live with the host (flat, bytes): where; and their update,
  // once the states are here. Empty: nothing is updated, as after apply() without one.
  std::function<at::Tensor(int32_t layer)> host_states;
  std::function<void(int32_t layer, const at::Tensor& states)> update_layer;
  // Of a migration's graph (schedule/migration.h): the state that a segment's task moves,
  // contiguous, and back from what came (bytes of the same).
  std::function<at::Tensor(graph::SegmentId)> take_expert;
  std::function<void(graph::SegmentId, const at::Tensor& state)> put_expert;
};

struct PlayerOptions {
  double timeout_seconds = 120;  // without any progress on this rank
  // Called after every task; for measuring memory over time. Returns this rank's live bytes.
  std::function<int64_t()> live_bytes;
  // Where the ranks of the run sit, for exchanges that know nodes (Strategy::all_to_all). Null:
  // every rank is a node of its own. Outlives the player.
  const collective::Topology* topology = nullptr;
  // Called before every task, with its name; for telling what a rank was doing. May be empty.
  std::function<void(int64_t step, const std::string& task)> note;
  // Where the stage's tensors are. Beside the host's transport, which brings counts and statistics,
  // the same rank's endpoint for tensors (comm/device_transport.h); null: the host's as well.
  at::Device device = at::kCPU;
  comm::Transport* device_transport = nullptr;
  // Of every layer of the graph whose experts have copies, as they are when a step begins; outlives
  // the player. Null: no expert has any.
  const balance::Placements* placements = nullptr;
  // Of all gradients that the graph divides; outlives the player. Null: it divides none.
  GradientShares* gradient_shares = nullptr;
  // Of all weights that the graph divides; outlives the player. Null: it divides none.
  const WeightShares* weight_shares = nullptr;
  // Where what the graph copies to the host lives; outlives the player. Null: it copies nothing.
  HostMemory* host_memory = nullptr;
};

class Player {
 public:
  // The graph, the stage, the transport and the cores outlive the player. The graph must be valid
  // and free of deadlock (graph::validate, graph::find_deadlock).
  Player(const schedule::StepGraph& step, const strategy::Strategy& strategy,
         const model::Model& model, Rank rank, nn::Stage& stage, comm::Transport& transport,
         Cores& cores, PlayerOptions options);
  ~Player();

  // Runs one step. `step_number` makes the operations' names unique over the run. `timeline`, when
  // given, receives this rank's tasks (absolute seconds of the steady clock) and memory samples;
  // its vectors must have the graph's sizes, and other ranks may fill theirs at the same time.
  // Throws CommError (timeouts name rank, operation, peer).
  void play(int64_t step_number, std::span<const MicroBatch> micro_batches, const Update& update,
            graph::Timeline* timeline);

  // Rows that this rank sent to each expert in the last step, by (layer, micro-batch); of tokens in
  // chunks, those of chunk 1, then of chunk 2, ... (cost::ExpertLoad::routed).
  const std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>>& routed_rows() const {
    return routed_rows_;
  }
  // Of a strategy that deduplicates, the distinct tokens (collective::distinct_tokens) of the same;
  // else empty.
  const std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>>& distinct_tokens() const {
    return distinct_tokens_;
  }
  // Rows received by this rank's experts in the last step: by layer, summed over micro-batches.
  const std::map<int32_t, int64_t>& received_rows() const { return received_rows_; }

 private:
  struct SlotValue {
    at::Tensor tensor;
    std::unique_ptr<nn::Routing> routing;
    std::unique_ptr<nn::Tape> tape;
    at::Tensor sent;  // while an exchange is under way: what it reads in place of a slot
  };
  // What slots held that are with the host: their values without the device's memory, and what of
  // it each tensor was. Tensors that share memory share it when they are back.
  struct Away {
    struct View {
      size_t memory = 0;
      caffe2::TypeMeta type;
      int64_t offset = 0;  // elements
      std::vector<int64_t> sizes, strides;
    };
    std::vector<SlotValue> values;           // in the order of the slots
    std::vector<std::optional<View>> views;  // of the tensors of all of them; none: it stayed
    std::vector<at::Tensor> memory;
  };
  template <class F>
  static void for_each_tensor(SlotValue& value, F visit);
  struct InFlight {
    graph::TaskId task;
    graph::Stream stream;
    std::unique_ptr<comm::Operation> operation;
  };

  bool ready(const graph::Task& task) const;
  bool start_communication();   // everything whose turn it is; true when something was posted
  bool finish_communication();  // everything that is done; true when something was
  void run_compute(const graph::Task& task);
  void finish(const graph::Task& task);
  // On a device: the task's stream comes after what it depends on in other streams; libtorch works
  // in it as long as the result lives.
  DeviceStreams::Use enter(const graph::Task& task);
  void leave(const graph::Task& task);
  void keep_for(graph::Stream stream, const SlotValue& value) const;
  void take_device_times();
  void upload(std::span<const MicroBatch> micro_batches);
  void wait_for_communication();

  // What an exchange of a group is written from.
  struct GroupExchange {
    collective::Topology topology;  // of its members
    collective::DispatchCombineCounts told;
  };
  // What the counts of one layer and micro-batch travel in: for every peer and chunk the rows for
  // each of its experts, then what it must be told of others (DispatchCombineCounts).
  struct CountMessages {
    std::vector<int64_t> sent, received;
    std::vector<size_t> first_received, received_a_chunk;  // by peer
    // Where what came from `peer` about this chunk begins.
    size_t place(size_t peer, int16_t chunk) const {
      return first_received[peer] + received_a_chunk[peer] * static_cast<size_t>(chunk);
    }
  };
  // Of a segment's counts: layer, micro-batch, Segment::chunk.
  using ChunkKey = std::tuple<int32_t, int32_t, int16_t>;
  ChunkKey key_of(const graph::Task& task) const;
  const GroupExchange& exchange_of(const graph::Task& task, const comm::Group& group);
  collective::Topology topology_of(const comm::Group& group) const;
  int64_t row_bytes() const;
  TokenExchange& token_exchange_of(const graph::Task& task);
  // Of the device's memory, in the current stream; what of the CPU is not counted stays so.
  comm::Allocate device_scratch() const;
  comm::Allocate counted_scratch() const;
  void read_counts(const CountMessages& messages, int16_t chunk, nn::Routing& routing) const;
  collective::CountOf count_of(const graph::Task& task, const comm::Group& group,
                               const nn::Routing& routing, bool to_experts, int64_t row_bytes);

  void run_segment(const graph::Task& task);
  void run_forward(const graph::Task& task, const schedule::Segment& segment);
  void run_backward(const graph::Task& task, const schedule::Segment& segment);
  void run_weights(const graph::Task& task, const schedule::Segment& segment);
  void run_update(const graph::Task& task, const schedule::Segment& segment);
  std::unique_ptr<comm::Operation> start(const graph::Task& task);
  std::unique_ptr<comm::Operation> start_counts(const graph::Task& task, comm::OperationName name);
  std::unique_ptr<comm::Operation> start_all_to_all(const graph::Task& task,
                                                    comm::OperationName name);
  std::unique_ptr<comm::Operation> start_token_exchange(const graph::Task& task,
                                                        comm::OperationName name);
  std::unique_ptr<comm::Operation> start_all_reduce(const graph::Task& task,
                                                    comm::OperationName name);
  // Of ranks that share a layer's or an expert's matrices: rows of all of them, by rank; and the
  // sum of their parts, of which this rank keeps that of its own rows.
  std::unique_ptr<comm::Operation> start_tokens_gather(const graph::Task& task,
                                                       comm::OperationName name);
  std::unique_ptr<comm::Operation> start_tokens_scatter(const graph::Task& task,
                                                        comm::OperationName name);
  void keep_own_share(const graph::Task& task);
  // Of exchanges over ep x etp (strategy::fuses_exchange): the rows for each expert, once for each
  // rank that has a part of it, as the group's members follow each other; and the sums of the parts
  // that come back in this order.
  bool is_fused(const graph::Task& task) const;
  std::vector<int64_t> sent_counts(const nn::Routing& routing) const;
  at::Tensor repeated(const at::Tensor& rows, const nn::Routing& routing) const;
  void end_fused_exchange(const graph::Task& task);
  // Divided gradients: the task's new buffers take memory, its layer's are added to the shares, and
  // what a slot holds has its memory given back.
  void hold_gradients(const graph::Task& task);
  void keep_gradients(const graph::Task& task);
  void free(graph::SlotId slot);
  void read_shared_counts(const graph::Task& task, nn::Routing& routing) const;
  struct OwnRows {
    std::vector<int64_t> rows;             // by member of the group
    int64_t own = 0, before = 0, all = 0;  // this rank's, those of members before it, of all
  };
  OwnRows own_rows(const graph::Task& task, const comm::Group& group);
  std::unique_ptr<comm::Operation> start_shared_counts(const graph::Task& task,
                                                       comm::OperationName name);
  std::unique_ptr<comm::Operation> start_reduce_scatter(const graph::Task& task,
                                                        comm::OperationName name);
  std::unique_ptr<comm::Operation> start_hop(const graph::Task& task, comm::OperationName name);
  std::unique_ptr<comm::Operation> start_weights_gather(const graph::Task& task,
                                                        comm::OperationName name);
  // What lives with the host (step.h): optimizer states of a layer, or what a chunk of layers keeps
  // of a micro-batch.
  std::unique_ptr<comm::Operation> start_host_copy(const graph::Task& task, std::string what);
  std::unique_ptr<comm::Operation> send_away(const graph::Task& task, std::string what);
  std::unique_ptr<comm::Operation> bring_back(const graph::Task& task, std::string what);
  void end_host_copy(const graph::Task& task);
  // Of copies of experts: their weights from home, or their gradients home.
  std::unique_ptr<comm::Operation> start_copies(const graph::Task& task, comm::OperationName name);

  SlotValue& value(graph::SlotId slot) { return values_[local_slot_[slot.index()]]; }
  SlotValue& read(const graph::Task& task, size_t i) { return value(step_.graph.reads(task)[i]); }
  SlotValue& write(const graph::Task& task, size_t i) { return value(step_.graph.writes(task)[i]); }
  // The first slot of a kind; nullptr when there is none.
  SlotValue* find(std::span<const graph::SlotId> slots, schedule::SlotKind kind);
  nn::Tape* new_tape(const graph::Task& task);
  // Of a slot kHeadOutputs, whose tensors stand where a tape's do.
  static nn::Stage::HeadOutputs head_outputs_of(const SlotValue& slot);
  static void hold_head_outputs(SlotValue& slot, nn::Stage::HeadOutputs outputs);
  const at::Tensor& own_part_of_keys(const graph::Task& task);  // that its ring step has left
  nn::Routing& routing_of(const graph::Task& task);
  // Of all chunks.
  std::vector<nn::Routing*> routings_of(const graph::Task& task);
  const MicroBatch& batch_of(const graph::Task& task) const;
  int64_t own_tokens() const;  // of a micro-batch, of the model's own layers
  comm::Group group_of(const graph::Task& task) const;
  at::Tensor empty(std::vector<int64_t> shape) const;

  const schedule::StepGraph& step_;
  const strategy::Strategy& strategy_;
  const model::Model& model_;
  Rank rank_;
  nn::Stage& stage_;
  comm::Transport& transport_;  // of counts and statistics
  Cores& cores_;
  std::optional<Cores::Hold> core_;  // kept from task to task while the next one is ready
  PlayerOptions options_;
  comm::Transport& tensors_;  // of tensors
  at::ScalarType dtype_;
  DeviceStreams streams_;
  std::vector<DeviceEvent> ends_, starts_;  // by local task; starts only for a timeline
  DeviceEvent step_begins_;                 // for a timeline
  double step_begin_seconds_ = 0;
  std::vector<MicroBatch> uploaded_;

  std::vector<int32_t> local_slot_;  // by SlotId; -1 on other ranks
  std::vector<SlotValue> values_;
  std::vector<int32_t> local_task_;  // by TaskId
  std::vector<char> done_;           // by local task
  int64_t num_done_ = 0;
  size_t cursor_[graph::kNumStreams] = {};
  uint64_t completions_seen_ = 0;
  double last_progress_seconds_ = 0;

  // Counts received in a micro-batch's forward, kept for its recomputation.
  std::map<ChunkKey, std::vector<int64_t>> received_counts_, shared_counts_;
  std::map<int32_t, int64_t> received_rows_;
  std::map<graph::GroupId, GroupExchange> exchanges_;
  // By (layer, micro-batch); shared: as they are gathered, by rank, then by chunk.
  std::map<std::pair<int32_t, int32_t>, CountMessages> count_messages_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>> shared_messages_;
  std::map<std::pair<int32_t, int32_t>, std::unique_ptr<TokenExchange>> token_exchanges_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int64_t>> routed_rows_, distinct_tokens_;
  std::map<std::pair<int32_t, int32_t>, Away> away_;  // by (first layer, micro-batch)
  std::vector<double> statistics_;

  int64_t step_number_ = 0;
  std::span<const MicroBatch> micro_batches_;
  const Update* update_ = nullptr;
  graph::Timeline* timeline_ = nullptr;

  // Last, so that it goes first: operations write into the members above until they are withdrawn.
  std::vector<InFlight> in_flight_;
};

// An all-gather of what the members of a group hold a share each of: tensor := all shares, cut as
// reductions cut it (comm::start_all_gather). The tensor is contiguous.
std::unique_ptr<comm::Operation> start_gather(comm::Transport& transport, const comm::Group& group,
                                              comm::OperationName name, const at::Tensor& tensor,
                                              strategy::Reduction form,
                                              const collective::Topology& topology);

// Seconds of the steady clock: the common time of all ranks of a host.
double now_seconds();

// "fp32" -> at::kFloat ...
at::ScalarType scalar_type(strategy::Precision precision);

}  // namespace piper::executor
