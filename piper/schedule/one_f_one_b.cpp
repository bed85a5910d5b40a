#include <piper/schedule/one_f_one_b.h>

#include <algorithm>

namespace piper::schedule {

std::vector<Action> one_f_one_b_actions(int64_t pp, int64_t stage, int64_t num_micro_batches,
                                        bool pairs) {
  const int64_t behind = pp - 1 - stage;
  // Forwards before the first pair.
  const int64_t num_ahead = std::min(num_micro_batches, pairs ? 2 * behind + 1 : behind);
  std::vector<Action> actions;
  const auto forward = [&](int64_t i) {
    actions.push_back({Action::Kind::kForward, static_cast<int32_t>(i)});
  };
  const auto backward = [&](int64_t i) {
    actions.push_back({Action::Kind::kBackward, static_cast<int32_t>(i)});
  };
  for (int64_t i = 0; i < num_ahead; ++i) forward(i);
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    if (num_ahead + i < num_micro_batches) {
      forward(num_ahead + i);
      actions.back().pairs_with_next = pairs;
    }
    backward(i);
  }
  return actions;
}

}  // namespace piper::schedule
