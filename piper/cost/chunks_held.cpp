#include <piper/cost/chunks_held.h>
#include <piper/schedule/action.h>

#include <algorithm>

namespace piper::cost {
namespace {

bool holds_no_more(const ChunksHeld& a, const ChunksHeld& than) {
  return a.is_in_pair <= than.is_in_pair && a.ends_input_part >= than.ends_input_part &&
         std::ranges::equal(a.forwards, than.forwards, std::ranges::less_equal{}) &&
         std::ranges::equal(a.waiting, than.waiting, std::ranges::less_equal{});
}

void add(std::vector<ChunksHeld>& moments, const ChunksHeld& moment) {
  for (const ChunksHeld& known : moments)
    if (holds_no_more(moment, known)) return;
  std::erase_if(moments, [&](const ChunksHeld& known) { return holds_no_more(known, moment); });
  moments.push_back(moment);
}

}  // namespace

std::vector<ChunksHeld> chunks_held(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                                    int64_t num_micro_batches, int64_t rank, bool takes_turns,
                                    bool recomputes) {
  const int64_t rounds = 4 * pp + num_micro_batches % pp;
  const bool holds_all = schedule == strategy::PipelineSchedule::kGPipe;
  const int64_t m = holds_all ? num_micro_batches : std::min(num_micro_batches, rounds);
  std::vector<ChunksHeld> moments;
  const std::vector<int64_t> none(static_cast<size_t>(vpp));
  ChunksHeld now{.forwards = none, .waiting = none};
  for (const schedule::Action& action : schedule::actions(schedule, pp, rank, m, vpp)) {
    const auto chunk = static_cast<size_t>(action.chunk);
    int64_t& held = now.forwards[chunk];
    if (recomputes && action.kind == schedule::Action::Kind::kBackwardInput) {
      ++now.waiting[chunk];
      now.ends_input_part = true;
      add(moments, now);
      now.ends_input_part = false;
    } else if (recomputes && action.kind == schedule::Action::Kind::kBackwardWeights) {
      --now.waiting[chunk];
    }
    if (action.kind == schedule::Action::Kind::kForward) {
      now.is_in_pair = takes_turns && action.pairs_with_next;
      if (now.is_in_pair) add(moments, now);
      ++held;
      if (!now.is_in_pair) add(moments, now);
    } else if (schedule::makes_weight_gradients(action.kind)) {
      --held;
      if (now.is_in_pair) add(moments, now);
      now.is_in_pair = false;
    }
  }
  return moments;
}

}  // namespace piper::cost
