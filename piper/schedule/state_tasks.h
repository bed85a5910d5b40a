// Weights and gradients on their way, and the update that ends a step. Collectives over groups of
// one rank are left out.
//
//   ZeRO 0     gradients are all-reduced behind the last backward that adds to them
//   ZeRO 1     they are scattered there; updated weights are gathered before the step's first
//              forward, or behind the update
//   ZeRO 2     they are scattered behind every backward, from buffers that live for a while alone
//              (step.h): behind the next layer the rank adds its share to its sums and gives them
//              back
//   ZeRO 3     and weights are gathered before every forward and backward, into buffers that live
//              until these are done (step.h)
//
// Copies of experts (expert_copies.h) are whole on their ranks under each: their gradients come
// home behind the last of these backwards, their weights behind the first gather.
//
// Up to ZeRO 1 reductions may start later (strategy::ReductionStart). They are then held back, and
// posted on the stream of states, since exchanges do not wait for them. Those that yield start
// behind exchanges and messages, one after the other, and at once where the next layer has neither.
// The rest start behind the last backward and its message.
//
// With ZeRO 1 and 2 a table that the first and the last stage both hold is all-reduced all the
// same: they cut their buffers differently, and sum the whole of it.
//
// (Rajbhandari et al. 2020.) A trainer lets a part of this travel beside compute, and waits for the
// rest (execution_style.h).
#pragma once

#include <piper/schedule/state_buffers.h>
#include <piper/schedule/writer.h>

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace piper::schedule {

// Writes one rank's, in the order in which its gradients become final. All ranks of a stage run the
// same actions, so their streams hold the same operations in the same order, between all-to-alls of
// the expert group as well.
//
// A layer (>= 0) has dense and, with a mixture, expert parameters; kEmbedding and kHead (with the
// final norm) have dense ones.
class StateTasks {
 public:
  static constexpr int32_t kEmbedding = kEmbeddingLayer, kHead = kHeadLayer;

  explicit StateTasks(RankWriter& writer);

  // What of an action counts here.
  struct Place {
    graph::Phase phase = graph::Phase::kForward;
    int32_t micro_batch = -1;
    bool makes_gradients = false;
    bool is_last = false;  // that adds to them
  };

  // Before the step's first forward of a chunk: weights that were updated, of these layers, each
  // with the layer whose forward needs it first.
  struct Ahead {
    int32_t layer = 0, needed_by = 0;
  };
  void gather_ahead(const std::vector<Ahead>& layers);
  // Around the tasks of a layer in an action.
  void begin(int32_t layer, const Place& place, PendingTasks& posted);
  void end(int32_t layer, const Place& place, PendingTasks& posted);
  // Before the forward of a module's head, which adds to the head's table: turns of another
  // micro-batch lie between it and begin().
  void begin_head_of_module(const Place& place) { keep_before(kHead, place); }

  // An exchange of rows or of keys and values, or a message, was posted; none() counts for nothing.
  // Half of the reductions that are held back start when it has ended.
  void let_pass(graph::TaskId exchange);

  // Whether end() has gradients to reduce.
  bool reduces(const Place& place) const {
    return place.makes_gradients && (place.is_last || reduces_always_);
  }

  // After everything else of the step: what is left to reduce, the tied embedding, this rank's
  // share of the gradient norm, the statistics of the world, the optimizer with its copies, what is
  // left to gather. `layers`: those of the rank, and its ends (state_layers()).
  void write_update(const std::vector<int32_t>& layers);

 private:
  using Tasks = std::vector<graph::TaskId>;
  enum class What : uint8_t { kGather, kReduce };

  Tasks post(What what, int32_t layer, ComputePart share, const PendingTasks& behind,
             bool is_waited_for);
  graph::TaskId post_one(What what, strategy::Axis axis, const Segment& segment,
                         const PendingTasks& behind, bool is_waited_for, const Slots& slots = {});
  graph::TaskKind reduction_of(const Segment& segment) const;
  // A reduction that has not started: of one buffer of a layer, or copies' gradients on their way
  // home. What it waits for, in any case.
  struct HeldBack {
    SegmentKind gradients = SegmentKind::kDenseGradients;
    int32_t layer = 0;
    graph::List<graph::TaskId> behind;
  };
  void hold_back(int32_t layer, const PendingTasks& behind);
  void start_held_back(size_t most, graph::TaskId behind, bool in_turn);
  // Copies of a layer's experts (expert_copies.h). `homes`: the slot of their homes' buffer, where
  // that is a slot.
  graph::TaskId bring_copies_home(int32_t layer, const PendingTasks& behind, const Slots& homes);
  graph::TaskId spread_copies(int32_t layer, const graph::List<graph::TaskId>& gathered,
                              const Slots& homes);
  void post_rest(What what, graph::TaskId behind);
  void write_tied_embedding();
  void update_from_host(const std::vector<int32_t>& layers, graph::TaskId behind);
  // Divided gradients on their way: a layer's reduce-scatters, and the buffers that they read.
  struct Travelling {
    int32_t layer = 0;
    graph::Phase phase = graph::Phase::kBackward;
    int32_t micro_batch = -1;
    graph::List<graph::TaskId> tasks;
    graph::List<graph::SlotId> buffers;
  };
  void scatter(int32_t layer, const PendingTasks& behind, bool is_last);
  // Keeps this rank's share of the first so many, and gives their buffers back.
  void keep(size_t num_first);
  void keep(const Travelling& of);
  // What adds to a layer's gradients comes behind their last reduce-scatter.
  void keep_before(int32_t layer, const Place& place);
  // Divided weights, where they are slots: those that a layer computes with.
  struct Held {
    int count = 0;  // of those who compute with them
    graph::TaskId gathered = graph::TaskId::none(), dropped = graph::TaskId::none();
    graph::SlotId weights = graph::SlotId::none();
  };
  using WeightsKey = std::pair<SegmentKind, int32_t>;
  graph::List<WeightsKey> weights_of(int32_t layer, const Place& place) const;
  void hold_weights(int32_t layer, const Place& place, PendingTasks& posted);
  void drop_weights(int32_t layer, const Place& place);
  // Whether the layer's dense parameters are a table that the ends sum (write_tied_embedding).
  bool is_summed_by_ends(int32_t layer) const;

  RankWriter& writer_;
  const ExecutionStyle& style_;
  int64_t zero_;
  strategy::ReductionStart start_;
  bool gathers_always_, reduces_always_;  // with every micro-batch
  bool holds_weights_;                    // for a while alone, as slots
  std::map<WeightsKey, Held> held_;
  std::set<int32_t> has_copies_;  // layers whose copies were brought in this step, where held
  // The last compute before the layer last come to: what is gathered waits for it.
  graph::TaskId gather_guard_ = graph::TaskId::none();
  ComputePart beside_;                                // what travels beside compute
  graph::List<graph::TaskId> reduced_;                // all reductions so far
  std::vector<Travelling> travelling_;                // in the order of their reduce-scatters
  graph::TaskId last_state_ = graph::TaskId::none();  // on their own stream they follow each other
  std::vector<std::pair<int32_t, Tasks>> ahead_;      // gathered ahead, by layer
  std::deque<HeldBack> held_back_;
  // The first is the held-back reduction that started last, the second the last exchange or message
  // that went before those still held back.
  graph::TaskId last_started_ = graph::TaskId::none(), passed_ = graph::TaskId::none();
  bool has_let_pass_ = false;  // since the layer before ended
  bool come_home_ = false;     // the last that started are copies' gradients
};

}  // namespace piper::schedule
