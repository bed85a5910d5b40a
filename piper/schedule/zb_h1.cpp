#include <piper/schedule/zb_h1.h>

namespace piper::schedule {

std::vector<Action> zb_h1_actions(int64_t pp, int64_t rank, int64_t num_micro_batches) {
  const int64_t num_ahead = std::min(num_micro_batches, pp - 1 - rank);
  std::vector<Action> actions;
  actions.reserve(static_cast<size_t>(3 * num_micro_batches));
  const auto push = [&](Action::Kind kind, int64_t i) {
    actions.push_back({kind, static_cast<int32_t>(i)});
  };
  for (int64_t i = 0; i < num_ahead; ++i) push(Action::Kind::kForward, i);
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    if (num_ahead + i < num_micro_batches) push(Action::Kind::kForward, num_ahead + i);
    push(Action::Kind::kBackwardInput, i);
    if (i >= rank) push(Action::Kind::kBackwardWeights, i - rank);
  }
  for (int64_t i = std::max<int64_t>(num_micro_batches - rank, 0); i < num_micro_batches; ++i)
    push(Action::Kind::kBackwardWeights, i);
  return actions;
}

}  // namespace piper::schedule
