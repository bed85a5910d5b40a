// Simulates the action lists of a pipeline (schedule/action.h) in seconds: any schedule, any number
// of chunks a rank, split backwards, uneven stages. The plain truth that the closed forms of
// bubble.h are held to, and fast enough for the best candidates of a search: it simulates nothing
// but the lists, no segments, streams or devices (that is sim's work).
//
//   forward  of micro-batch k on virtual stage v starts when its rank is free and stage v-1 has
//            sent k
//   backward (or the input's part) when its rank is free, its forward has run and stage v+1 has
//            sent k's gradient
//   the weights' part when its rank is free
//
// each rank in the order of its list. Messages travel while ranks compute; as in the lowered step
// (schedule/transfers.h) a rank takes the message for an action once the action two before it has
// ended, the two of a pair that overlap being one. Between two virtual stages of one rank nothing
// travels. Activations may live with the host meanwhile (schedule/host_copies.h): a forward then
// waits until what left before it has left, a backward until what it needs is back.
#pragma once

#include <piper/cost/host_link.h>
#include <piper/schedule/action.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

namespace piper::cost {

// Seconds of one virtual stage and one micro-batch.
struct ChunkSeconds {
  double forward = 0;           // exchanges included
  double backward_input = 0;    // of a split backward, with recomputation
  double backward_weights = 0;  // likewise
  double backward = 0;          // of a whole one, with recomputation
  double ahead =
      0;  // the beginning of the (input's) backward that needs no gradient: recomputation
  double send_forward = 0;   // to the next virtual stage; unused on the last
  double send_backward = 0;  // to the one before; unused on the first
  double meets_other = 0;    // more of a message that leaves a rank with the other's of a pair
  double pair_saves = 0;     // of a pair; two chunks save what the lesser does
  double copy = 0;  // of what it keeps, to the host or back, when the link does nothing else
};

struct RankSeconds {
  double start = 0;   // of its first action
  double finish = 0;  // of its last
  double busy = 0;
  // What the literature counts: idle between a rank's first action and its last.
  double bubble() const { return finish - start - busy; }
};

// Allocates when it is made, never when it simulates. Not thread-safe.
class PipelineSimulator {
 public:
  // Requires what schedule::actions() requires. `copies_activations`: they go to the host and come
  // back.
  PipelineSimulator(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                    int64_t num_micro_batches, bool copies_activations = false);

  // `chunks`: by virtual stage, in the order of the model (pp x vpp). `pairs_overlap`: the two
  // actions of a pair start together, once both could, and end together, by their
  // `pair_saves` earlier than one after the other; else they are two actions like others. By rank;
  // valid until the next call.
  std::span<const RankSeconds> simulate(std::span<const ChunkSeconds> chunks,
                                        bool pairs_overlap = false) &;

  // The most chunk-forwards whose activations a rank holds at once: from the forward to the end of
  // the whole backward or of the weights' part. By rank; of the lists alone.
  std::span<const int64_t> peak_chunk_forwards() const& { return peaks_; }
  std::span<const int64_t> peak_chunk_forwards() && = delete;

 private:
  struct Step {  // one action, in an order in which nothing is needed before it is made
    int32_t rank, stage;
    int32_t needs;  // index into ends_ of what comes from the neighbouring virtual stage
    int32_t makes;  // index into ends_
    schedule::Action::Kind kind;
    bool is_sent;                      // what it needs comes from another rank
    bool is_pair;                      // the first of a pair: the next step is its second
    bool meets_other = false;          // what it needs was sent with what the other of a pair made
    int32_t awaits = HostLink::kNone;  // the copy of this rank that must have ended
    int32_t copies = 0;                // of this rank that are posted when it has ended
  };
  struct Rank {
    double free_at = 0;
    double before = 0;  // when the action before the last one ended
  };
  struct Copy {
    int32_t stage;
    int32_t behind;  // of the same rank
  };
  class CopyList;
  double seconds_of(const Step& step, const ChunkSeconds& chunk) const;
  double start_of(const Step& step, std::span<const ChunkSeconds> chunks, bool pairs_overlap);
  void end(const Step& step, double start, double at, double busy);
  void post(const Step& step, std::span<const ChunkSeconds> chunks);

  std::vector<Step> steps_;
  // When forwards end, by stage and micro-batch, then when backwards do; then two more: what is
  // there from the start, and what nobody needs.
  std::vector<double> ends_;
  std::vector<Rank> ranks_;
  std::vector<RankSeconds> times_;
  std::vector<int64_t> peaks_;
  // By rank, when activations are copied.
  std::vector<std::vector<Copy>> copies_;
  std::vector<HostLink> links_;
};

// How many of so many micro-batches are simulated; the others go on as these do. Four rounds of the
// pipeline fill it, and what is left of a round is left here too.
inline int64_t micro_batches_simulated(int64_t pp, int64_t num_micro_batches) {
  return std::min(num_micro_batches, std::max<int64_t>(4 * pp, 8) + num_micro_batches % pp);
}

// Simulators, each made when it is first asked for. Not thread-safe.
class PipelineSimulators {
 public:
  PipelineSimulator& of(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                        int64_t num_micro_batches, bool copies_activations = false);
  // When each rank has done its last action; beyond micro_batches_simulated() at the pace of two
  // more rounds.
  std::vector<double> finish(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                             int64_t num_micro_batches, std::span<const ChunkSeconds> chunks,
                             bool copies_activations = false, bool pairs_overlap = false);

 private:
  std::map<std::tuple<strategy::PipelineSchedule, int64_t, int64_t, int64_t, bool>,
           std::unique_ptr<PipelineSimulator>>
      simulators_;
};

}  // namespace piper::cost
