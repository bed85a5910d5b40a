// What the estimator reads off a schedule's lists of actions (schedule/action.h), once for all
// strategies with that schedule.
#pragma once

#include <piper/cost/chunks_held.h>
#include <piper/schedule/action.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace piper::cost {

// What a rank's list of actions is like.
struct ListFacts {
  double paired = 0;          // part of the forwards that run with a backward
  std::vector<double> whole;  // part of each chunk's backwards that are not split
  // When activations are offloaded (schedule/host_copies.h): micro-batches of each chunk that go
  // to the host, and how many of the rank's layers are on the device at once.
  std::vector<int64_t> copied;
  double held = 0;
};

// What a rank does from the first action on that completes a chunk's gradients. The numbers of its
// micro-batches are those of a list with fewer of them, where there are many.
struct TailAction {
  schedule::Action action;
  bool completes = false;  // its chunk's gradients
};
using Tail = std::vector<TailAction>;

// Whether what is computed again stays until a weights' part of its own.
bool keeps_recomputed(const strategy::Strategy& strategy);

// Keeps what it was asked for: references stay valid, but those of tail() only until its next call.
// Not thread-safe. Time and memory do not grow with the number of micro-batches.
class ScheduleFacts {
 public:
  // By rank of the pipeline, of so many micro-batches.
  const std::vector<ListFacts>& lists(const strategy::Strategy& strategy,
                                      int64_t num_micro_batches);
  const std::vector<ListFacts>& lists(const strategy::Strategy& strategy) {
    return lists(strategy, strategy.num_micro_batches);
  }
  // By rank: the moments at which it may hold the most.
  const std::vector<std::vector<ChunksHeld>>& held(const strategy::Strategy& strategy);
  const Tail& tail(const strategy::Strategy& strategy, int64_t stage);

 private:
  using ListKey = std::tuple<strategy::PipelineSchedule, int64_t, int64_t, int64_t>;
  using HeldKey = std::tuple<ListKey, bool, bool>;  // pairs_take_turns(), keeps_recomputed()
  std::map<ListKey, std::vector<ListFacts>> lists_;
  ListKey last_list_key_{};
  const std::vector<ListFacts>* last_lists_ = nullptr;
  std::map<HeldKey, std::vector<std::vector<ChunksHeld>>> held_;
  HeldKey last_held_key_{};
  const std::vector<std::vector<ChunksHeld>>* last_held_ = nullptr;
  std::map<ListKey, std::vector<Tail>> tails_;
};

}  // namespace piper::cost
