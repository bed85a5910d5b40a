#include <piper/schedule/interleaved.h>

namespace piper::schedule {

std::vector<Action> interleaved_actions(int64_t pp, int64_t rank, int64_t num_micro_batches,
                                        int64_t vpp, bool pairs) {
  const int64_t written = (num_micro_batches + pp - 1) / pp * pp;
  const int64_t num = written * vpp;  // forwards of chunks
  const int64_t num_ahead = std::min(num, (pp - rank - 1) * 2 + (vpp - 1) * pp + (pairs ? 1 : 0));
  std::vector<Action> actions;
  actions.reserve(static_cast<size_t>(2 * num));
  const auto push = [&](Action::Kind kind, int64_t k) {
    const int64_t chunk = k / pp % vpp;
    actions.push_back(
        {kind, static_cast<int32_t>(k / (pp * vpp) * pp + k % pp),
         static_cast<int32_t>(kind == Action::Kind::kForward ? chunk : vpp - 1 - chunk)});
  };
  for (int64_t k = 0; k < num_ahead; ++k) push(Action::Kind::kForward, k);
  for (int64_t k = 0; k < num; ++k) {
    if (num_ahead + k < num) {
      push(Action::Kind::kForward, num_ahead + k);
      actions.back().pairs_with_next = pairs;
    }
    push(Action::Kind::kBackward, k);
  }
  drop_micro_batches_from(actions, num_micro_batches);
  return actions;
}

}  // namespace piper::schedule
