#include <piper/schedule/one_f_one_b.h>

#include <algorithm>

namespace piper::schedule {

std::vector<Action> one_f_one_b_actions(int64_t pp, int64_t stage, int64_t num_micro_batches) {
  const int64_t num_ahead =
      std::min(num_micro_batches, pp - 1 - stage);  // forwards before the first pair
  std::vector<Action> actions;
  const auto forward = [&](int64_t i) {
    actions.push_back({Action::Kind::kForward, static_cast<int32_t>(i)});
  };
  const auto backward = [&](int64_t i) {
    actions.push_back({Action::Kind::kBackward, static_cast<int32_t>(i)});
  };
  for (int64_t i = 0; i < num_ahead; ++i) forward(i);
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    if (num_ahead + i < num_micro_batches) forward(num_ahead + i);
    backward(i);
  }
  return actions;
}

}  // namespace piper::schedule
