#include <piper/cost/trainer/schedule_facts.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>

namespace piper::cost {

using strategy::Strategy;

bool keeps_recomputed(const Strategy& s) {
  return strategy::splits_backward(s.schedule) &&
         (s.recompute != strategy::Recompute::kNone || !s.recompute_per_stage.empty());
}

const std::vector<ListFacts>& ScheduleFacts::lists(const Strategy& s, int64_t m) {
  const ListKey key{s.schedule, s.mesh.pp, s.mesh.vpp, m};
  if (last_lists_ != nullptr && key == last_list_key_) return *last_lists_;
  std::vector<ListFacts>& known = lists_[key];
  last_list_key_ = key;
  last_lists_ = &known;
  const int64_t vpp = s.mesh.vpp;
  for (int64_t i = std::ssize(known); i < s.mesh.pp; ++i) {
    const schedule::HostCopies copies = schedule::host_copies(s.schedule, s.mesh.pp, vpp, m, i);
    const std::vector<schedule::Action> list = schedule::actions(s.schedule, s.mesh.pp, i, m, vpp);
    const auto pairs = std::ranges::count(list, true, &schedule::Action::pairs_with_next);
    ListFacts here{.paired = static_cast<double>(pairs) / static_cast<double>(m * vpp),
                   .whole = {},
                   .copied = {},
                   .held = static_cast<double>(copies.most_held) / static_cast<double>(vpp)};
    for (int64_t chunk = 0; chunk < vpp; ++chunk) {
      const auto whole = std::ranges::count_if(list, [&](const schedule::Action& a) {
        return a.chunk == chunk && a.kind == schedule::Action::Kind::kBackward;
      });
      here.whole.push_back(static_cast<double>(whole) / static_cast<double>(m));
      here.copied.push_back(std::count(copies.is_copied.begin() + chunk * m,
                                       copies.is_copied.begin() + (chunk + 1) * m, 1));
    }
    known.push_back(std::move(here));
  }
  return known;
}

const std::vector<std::vector<ChunksHeld>>& ScheduleFacts::held(const Strategy& s) {
  const HeldKey key{{s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches},
                    strategy::pairs_take_turns(s),
                    keeps_recomputed(s)};
  if (last_held_ != nullptr && last_held_key_ == key) return *last_held_;
  std::vector<std::vector<ChunksHeld>>& known = held_[key];
  last_held_key_ = key;
  last_held_ = &known;
  const auto [list, takes_turns, recomputes] = key;
  for (int64_t rank = std::ssize(known); rank < s.mesh.pp; ++rank)
    known.push_back(chunks_held(s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches, rank,
                                takes_turns, recomputes));
  return known;
}

const Tail& ScheduleFacts::tail(const Strategy& s, int64_t stage) {
  const ListKey key{s.schedule, s.mesh.pp, s.mesh.vpp, s.num_micro_batches};
  std::vector<Tail>& tails = tails_[key];
  for (int64_t i = std::ssize(tails); i <= stage; ++i) {
    const std::vector<schedule::Action> actions =
        schedule::actions(s.schedule, s.mesh.pp, i, s.num_micro_batches, s.mesh.vpp);
    std::vector<char> is_complete(static_cast<size_t>(s.mesh.vpp));
    size_t first = actions.size();
    int64_t open = s.mesh.vpp;
    Tail tail;
    for (; open > 0 && first-- > 0;) {
      const schedule::Action& action = actions[first];
      char& complete = is_complete[static_cast<size_t>(action.chunk)];
      const bool completes = schedule::makes_weight_gradients(action.kind) && complete == 0;
      if (completes) --open, complete = 1;
      tail.push_back({action, completes});
    }
    std::ranges::reverse(tail);
    tails.push_back(std::move(tail));
  }
  return tails[static_cast<size_t>(stage)];
}

}  // namespace piper::cost
