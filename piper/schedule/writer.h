// What the lowering writes with: tables shared by all ranks (StepWriter) and one rank's tasks
// (RankWriter), which finds out by itself what a task must wait for.
#pragma once

#include <piper/schedule/step.h>
#include <piper/strategy/rank_layout.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace piper::schedule {

// Between a virtual stage and the next: activations, or gradients the other way.
struct Message {
  bool is_gradient;
  int64_t from_stage;
  int32_t micro_batch;
};

// Holds the step while it is written. The model and the strategy outlive it. Not thread-safe.
class StepWriter {
 public:
  StepWriter(const model::Model& model, const strategy::Strategy& strategy,
             const ExecutionStyle& style);

  const model::Model& model;
  const strategy::Strategy& strategy;
  const strategy::RankLayout layout;
  const ExecutionStyle style;

  graph::Graph& graph() { return step_.graph; }
  StepGraph take() { return std::move(step_); }

  const SlotMeaning& meaning(graph::SlotId slot) const { return step_.meaning(slot); }

  graph::SegmentId id_of(const Segment& segment);
  graph::SlotShape id_of(const SlotMeaning& meaning);

  // All members of a group write the same exchanges in the same order: the n-th of one is the n-th
  // of the other, so n names the operation. A message is named by what it carries, since with
  // several chunks a rank may want messages in another order than its neighbour has them.
  graph::OperationId exchange(graph::GroupId group, size_t n);
  graph::OperationId message(Rank from, Rank to, const Message& message);

 private:
  graph::OperationId nth(std::vector<graph::OperationId>& operations, size_t n);

  StepGraph step_;
  size_t num_layers_ = 0;  // and ends
  std::vector<int32_t> segment_ids_,
      shape_ids_;  // by everything that tells two apart; -1: not yet used
  std::vector<std::vector<graph::OperationId>> exchanges_;                  // by group
  std::unordered_map<uint64_t, std::vector<graph::OperationId>> messages_;  // by from and to
};

// What a task reads, writes and frees, in the order that step.h fixes.
struct Slots {
  graph::List<graph::SlotId> reads, writes, frees;  // none() entries are left out
};

// What an action has posted and its next compute, or whatever it posts next, waits for, beside what
// the slots say.
struct PendingTasks {
  graph::TaskId counts = graph::TaskId::none();    // for the next all-to-all
  graph::TaskId exchange = graph::TaskId::none();  // the last all-to-all
  graph::List<graph::TaskId> earlier;
  // The last collective of a layer in trainers that compute in order: parts of compute that are
  // split off run beside it. And their last compute.
  graph::TaskId latest = graph::TaskId::none();
  graph::TaskId computed = graph::TaskId::none();
  std::vector<graph::TaskId> beside;  // states that travel beside a layer, which its end waits for

  void wait_for(graph::TaskId task) {
    if (task.valid()) earlier.push_back(task);
  }
  // In order: everything, and the last compute.
  graph::List<graph::TaskId> all() const {
    graph::List<graph::TaskId> list = earlier;
    list.push_back(latest);
    list.push_back(computed);
    return list;
  }
};

// Writes one rank's tasks, in order. A task depends on the communication tasks that wrote what it
// reads; a communication task depends also on the last compute task that wrote some of it (compute
// tasks wait for each other anyway).
class RankWriter {
 public:
  RankWriter(StepWriter& step, Rank rank);

  StepWriter& step() { return step_; }
  Rank rank() const { return rank_; }
  const strategy::Coordinates& at() const { return at_; }

  // What the tasks and slots that follow belong to.
  void begin(graph::Phase phase, int32_t micro_batch);
  int32_t micro_batch() const { return micro_batch_; }
  graph::Phase phase() const { return phase_; }

  graph::SlotId slot(SlotKind kind, const Segment& segment);
  graph::TaskId compute(const Segment& segment, const Slots& slots,
                        const graph::List<graph::TaskId>& after = {});
  // Between the ranks of the group. `segment` is the one whose rows, counts or gradients move.
  // `stream`: another than that of the kind.
  graph::TaskId collective(graph::TaskKind kind, strategy::Axis axis, const Segment& segment,
                           const Slots& slots, const graph::List<graph::TaskId>& after,
                           std::optional<graph::Stream> stream = {});
  // Divided gradients (step.h): the buffer that has been added to since it was last taken, none()
  // where nothing was. What adds to it later has a new one.
  graph::SlotId take_gradients(const Segment& buffer);
  // Between this rank and its host.
  graph::TaskId host_copy(int32_t layer, const Slots& slots,
                          const graph::List<graph::TaskId>& after);
  // The next compute waits for what was posted, or but for the last collective.
  void wait_for(PendingTasks& posted);
  void wait_for_earlier(PendingTasks& posted);
  bool waits() const { return !waited_for_.empty(); }
  graph::TaskId writer(graph::SlotId slot) const { return writer_of_[slot.index() - first_slot_]; }
  // Sends the slot to the rank of the same data index on another place of the pipeline, and frees
  // it; then waits, in trainers that do.
  graph::TaskId send(int64_t pp, const Message& message, graph::SlotId slot,
                     graph::TaskId behind = graph::TaskId::none());
  // After the last compute task written.
  graph::SlotId receive(int64_t pp, const Message& message, const SlotMeaning& meaning);

  // In phase kBackwardInput a segment with weights keeps what its part in phase kBackwardWeights
  // reads (step.h); the embedding, which has no input, writes nothing. What is due since the last
  // call, in the order of the backward.
  struct WeightsDue {
    Segment segment;
    graph::List<graph::SlotId> reads, frees;
  };
  std::vector<WeightsDue> take_weights_due() { return std::exchange(weights_due_, {}); }
  bool has_weights_due() const { return !weights_due_.empty(); }

  graph::TaskId last_compute() const { return last_compute_; }
  // The last exchange of rows with their experts, or of keys and values, since the last call.
  graph::TaskId take_last_exchange() {
    return std::exchange(last_exchange_, graph::TaskId::none());
  }

 private:
  graph::TaskId write(graph::NewTask task, const Slots& slots);
  void keep_for_weights(const Segment& segment, Slots& slots);
  void leave_weights(const Segment& segment, Slots& slots);
  void add_to_gradients(const Segment& segment, Slots& slots);
  void wait_for_writers(graph::NewTask& task, const Slots& slots) const;

  StepWriter& step_;
  Rank rank_;
  strategy::Coordinates at_;
  graph::Phase phase_ = graph::Phase::kForward;
  int32_t micro_batch_ = -1;
  graph::TaskId last_compute_ = graph::TaskId::none(), last_host_copy_ = graph::TaskId::none(),
                last_exchange_ = graph::TaskId::none();
  graph::List<graph::TaskId> waited_for_;
  size_t first_slot_;                     // slots of this rank are numbered from here
  std::vector<graph::TaskId> writer_of_;  // by slot, less first_slot_
  std::array<graph::GroupId, strategy::kNumAxes> groups_;  // none() until it is used
  std::vector<std::pair<graph::GroupId, size_t>> num_exchanges_;
  std::vector<WeightsDue> weights_due_;
  std::map<std::pair<SegmentKind, int32_t>, graph::SlotId> gradients_;  // by kind and layer
};

}  // namespace piper::schedule
