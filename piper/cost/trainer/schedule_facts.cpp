#include <piper/cost/trainer/schedule_facts.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>

namespace piper::cost {

using strategy::Strategy;

bool keeps_recomputed(const Strategy& s) {
  return strategy::splits_backward(s.schedule) &&
         (s.recompute != strategy::Recompute::kNone || !s.recompute_per_stage.empty());
}

namespace {

// Lists of more micro-batches than these repeat what two rounds of the pipeline do: their counts
// grow by as much with each, and they end alike. The search may ask for millions.
constexpr int64_t kRounds = 8, kRoundsThatRepeat = 2;

int64_t written_micro_batches(int64_t pp, int64_t m) {
  const int64_t most = kRounds * (pp + 1), period = kRoundsThatRepeat * pp;
  return m < most + period ? m : most + (m - most) % period;
}

struct ListCounts {
  int64_t pairs = 0;
  std::vector<int64_t> whole, copied;  // by chunk
  int64_t most_held = 0;
};

ListCounts counts_of(const Strategy& s, int64_t rank, int64_t m) {
  const int64_t vpp = s.mesh.vpp;
  const schedule::HostCopies copies = schedule::host_copies(s.schedule, s.mesh.pp, vpp, m, rank);
  const std::vector<schedule::Action> list = schedule::actions(s.schedule, s.mesh.pp, rank, m, vpp);
  ListCounts counts{.pairs = std::ranges::count(list, true, &schedule::Action::pairs_with_next),
                    .whole = {},
                    .copied = {},
                    .most_held = copies.most_held};
  for (int64_t chunk = 0; chunk < vpp; ++chunk) {
    counts.whole.push_back(std::ranges::count_if(list, [&](const schedule::Action& a) {
      return a.chunk == chunk && a.kind == schedule::Action::Kind::kBackward;
    }));
    counts.copied.push_back(std::count(copies.is_copied.begin() + chunk * m,
                                       copies.is_copied.begin() + (chunk + 1) * m, 1));
  }
  return counts;
}

ListCounts all_counts(const Strategy& s, int64_t rank, int64_t m) {
  const int64_t written = written_micro_batches(s.mesh.pp, m);
  ListCounts counts = counts_of(s, rank, written);
  if (written == m) return counts;
  const int64_t period = kRoundsThatRepeat * s.mesh.pp;
  const ListCounts next = counts_of(s, rank, written + period);
  const int64_t times = (m - written) / period;
  counts.pairs += times * (next.pairs - counts.pairs);
  for (size_t i = 0; i < counts.whole.size(); ++i) {
    counts.whole[i] += times * (next.whole[i] - counts.whole[i]);
    counts.copied[i] += times * (next.copied[i] - counts.copied[i]);
  }
  return counts;
}

}  // namespace

const std::vector<ListFacts>& ScheduleFacts::lists(const Strategy& s, int64_t m) {
  const ListKey key{s.schedule, s.mesh.pp, s.mesh.vpp, m};
  if (last_lists_ != nullptr && key == last_list_key_) return *last_lists_;
  std::vector<ListFacts>& known = lists_[key];
  last_list_key_ = key;
  last_lists_ = &known;
  const int64_t vpp = s.mesh.vpp;
  for (int64_t i = std::ssize(known); i < s.mesh.pp; ++i) {
    const ListCounts counts = all_counts(s, i, m);
    ListFacts here{.paired = static_cast<double>(counts.pairs) / static_cast<double>(m * vpp),
                   .whole = {},
                   .copied = counts.copied,
                   .held = static_cast<double>(counts.most_held) / static_cast<double>(vpp)};
    for (const int64_t whole : counts.whole)
      here.whole.push_back(static_cast<double>(whole) / static_cast<double>(m));
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
  const int64_t written = written_micro_batches(s.mesh.pp, s.num_micro_batches);
  const ListKey key{s.schedule, s.mesh.pp, s.mesh.vpp, written};
  std::vector<Tail>& tails = tails_[key];
  for (int64_t i = std::ssize(tails); i <= stage; ++i) {
    const std::vector<schedule::Action> actions =
        schedule::actions(s.schedule, s.mesh.pp, i, written, s.mesh.vpp);
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
