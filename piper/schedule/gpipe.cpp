#include <piper/schedule/gpipe.h>

namespace piper::schedule {

std::vector<Action> gpipe_actions(int64_t num_micro_batches) {
  std::vector<Action> actions;
  for (const auto kind : {Action::Kind::kForward, Action::Kind::kBackward})
    for (int64_t i = 0; i < num_micro_batches; ++i)
      actions.push_back({kind, static_cast<int32_t>(i)});
  return actions;
}

}  // namespace piper::schedule
