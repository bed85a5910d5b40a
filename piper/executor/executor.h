// The graph executor, for one rank: segments on tensors through nn::Stage, communication
// through comm. Keeps the rules of sim/simulate.h, so that the simulated and the executed order are
// the same.
//
// On a device (ExecutorOptions::device) a task is done once its work is in the task's stream
// (device_streams.h); the order in which tasks start is the same. The measured times of its tasks
// are those of the streams.
//
// An executor's life: made once per run, run_step() once per step.
//
// Its parts: slot_store.h owns what slots hold and gives it back when the graph says that its life
// ends; segment_dispatch.h runs compute tasks; communication_tasks.h starts and ends the others,
// with row_exchange.h for the rows of mixture layers and host_copies.h for what lives with the
// host.
//
// Thread safety: one executor belongs to its rank's thread.
#pragma once

#include <piper/executor/communication_tasks.h>
#include <piper/executor/cores.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/executor_context.h>
#include <piper/executor/segment_dispatch.h>
#include <piper/executor/slot_store.h>
#include <piper/graph/timeline.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace piper::executor {

class Executor {
 public:
  // The graph, the stage, the transport and the cores outlive the executor. The graph must be valid
  // and free of deadlock (graph::validate, graph::find_deadlock).
  Executor(const schedule::StepGraph& step, const strategy::Strategy& strategy,
           const model::Model& model, Rank rank, nn::Stage& stage, comm::Transport& transport,
           Cores& cores, ExecutorOptions options);
  ~Executor();

  // Runs one step. `step_number` makes the operations' names unique over the run. `timeline`, when
  // given, receives this rank's tasks (absolute seconds of the steady clock) and memory samples;
  // its vectors must have the graph's sizes, and other ranks may fill theirs at the same time.
  // Throws CommError (timeouts name rank, operation, peer).
  void run_step(int64_t step_number, std::span<const MicroBatch> micro_batches,
                const Update& update, graph::Timeline* timeline);

  // Rows that this rank sent to each expert in the last step, by (layer, micro-batch); in
  // chunks, those of chunk 1, then of chunk 2, ... (cost::ExpertLoad::routed).
  const std::map<LayerKey, std::vector<int64_t>>& routed_rows() const { return state_.routed_rows; }
  // Returns the numbers of distinct tokens (collective::distinct_tokens) of the same where the
  // strategy deduplicates; else nothing.
  const std::map<LayerKey, std::vector<int64_t>>& distinct_tokens() const {
    return state_.distinct_tokens;
  }
  // Rows received by this rank's experts in the last step: by layer, summed over micro-batches.
  // Where the device alone has the counts, as many as a capacity can keep.
  const std::map<int32_t, int64_t>& received_rows() const { return state_.received_rows; }

 private:
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

  size_t index_of(graph::TaskId task) const {
    return static_cast<size_t>(local_task_[task.index()]);
  }

  const ExecutorContext context_;
  const schedule::StepGraph& step_;
  Cores& cores_;
  std::optional<Cores::Hold> core_;  // kept from task to task while the next one is ready
  DeviceStreams streams_;
  SlotStore slots_;
  StepState state_;
  SegmentDispatch segments_;
  CommunicationTasks communication_;
  std::vector<DeviceEvent> ends_, starts_;  // by local task; starts only for a timeline
  DeviceEvent step_begins_;                 // for a timeline
  std::vector<MicroBatch> uploaded_;

  std::vector<int32_t> local_task_;  // by TaskId
  std::vector<char> done_;           // by local task
  int64_t num_done_ = 0;
  size_t cursor_[graph::kNumStreams] = {};
  uint64_t completions_seen_ = 0;
  double last_progress_seconds_ = 0;
  graph::Timeline* timeline_ = nullptr;

  // Last, so that it goes first: operations write into the members above until they are withdrawn.
  std::vector<InFlight> in_flight_;
};

}  // namespace piper::executor
