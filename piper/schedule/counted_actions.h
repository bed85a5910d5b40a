// For schedules that are told as "the next forward of chunk 1, the next backward of chunk 0, ...":
// numbers the micro-batches of each kind and chunk.
#pragma once

#include <piper/schedule/action.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace piper::schedule {

// Two chunks, as in a V. Not thread-safe.
class CountedActions {
 public:
  explicit CountedActions(int64_t num_micro_batches) {
    actions_.reserve(static_cast<size_t>(6 * num_micro_batches));
  }
  void forward(int32_t chunk, bool pairs_with_next = false) {
    actions_.push_back({Action::Kind::kForward, forwards_[chunk]++, chunk, pairs_with_next});
  }
  void backward(int32_t chunk) {
    actions_.push_back({Action::Kind::kBackward, backwards_[chunk]++, chunk});
  }
  // Its weights' part joins the queue.
  void backward_input(int32_t chunk) {
    due_.push_back({Action::Kind::kBackwardWeights, backwards_[chunk], chunk});
    actions_.push_back({Action::Kind::kBackwardInput, backwards_[chunk]++, chunk});
  }
  // The oldest of the queue; of `chunk`, the oldest of that chunk.
  void backward_weights() { actions_.push_back(due_[taken_++]); }
  void backward_weights(int32_t chunk) {
    auto oldest = due_.begin() + static_cast<int64_t>(taken_);
    while (oldest->chunk != chunk) ++oldest;
    std::rotate(due_.begin() + static_cast<int64_t>(taken_), oldest, oldest + 1);
    backward_weights();
  }
  bool has_weights_due() const { return taken_ < due_.size(); }
  int32_t forwards(int32_t chunk) const { return forwards_[chunk]; }

  // Without the micro-batches from `num_micro_batches` on.
  std::vector<Action> take(int64_t num_micro_batches) {
    drop_micro_batches_from(actions_, num_micro_batches);
    return std::move(actions_);
  }

 private:
  std::vector<Action> actions_;
  std::vector<Action> due_;
  size_t taken_ = 0;
  std::array<int32_t, 2> forwards_{}, backwards_{};
};

}  // namespace piper::schedule
