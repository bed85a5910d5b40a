#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/schedule/executable.h>

namespace piper::schedule {
namespace {

using ActionKind = Action::Kind;
using Lists = std::vector<std::vector<Action>>;

// What has run of every virtual stage and micro-batch.
class Done {
 public:
  Done(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp, int64_t m)
      : schedule_(schedule), pp_(pp), stages_(pp * vpp), m_(m), done_(2 * pp * vpp * m) {}

  bool may_run(int64_t rank, const Action& action) const {
    const int64_t stage = virtual_stage(schedule_, pp_, rank, action.chunk);
    switch (action.kind) {
      case ActionKind::kForward:
        return stage == 0 || done_[forward(stage - 1, action)];
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return done_[forward(stage, action)] &&
               (stage + 1 == stages_ || done_[backward(stage + 1, action)]);
      case ActionKind::kBackwardWeights:
        return done_[backward(stage, action)];
    }
    return false;
  }
  void run(int64_t rank, const Action& action) {
    const int64_t stage = virtual_stage(schedule_, pp_, rank, action.chunk);
    if (action.kind == ActionKind::kForward) done_[forward(stage, action)] = true;
    if (makes_input_gradient(action.kind)) done_[backward(stage, action)] = true;
  }

 private:
  size_t forward(int64_t stage, const Action& action) const {
    return static_cast<size_t>(stage * m_ + action.micro_batch);
  }
  size_t backward(int64_t stage, const Action& action) const {
    return static_cast<size_t>((stages_ + stage) * m_ + action.micro_batch);
  }
  strategy::PipelineSchedule schedule_;
  int64_t pp_, stages_, m_;
  std::vector<bool> done_;
};

// As far as all ranks come; `next`: of each rank.
std::vector<RankAction> run_all(strategy::PipelineSchedule schedule, const Lists& lists, int64_t m,
                                int64_t vpp, std::vector<size_t>& next) {
  Done done(schedule, static_cast<int64_t>(lists.size()), vpp, m);
  std::vector<RankAction> order;
  size_t all = 0;
  for (const std::vector<Action>& list : lists) all += list.size();
  order.reserve(all);
  next.assign(lists.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < lists.size(); ++r) {
      const auto rank = static_cast<int64_t>(r);
      const std::vector<Action>& list = lists[r];
      while (next[r] < list.size()) {
        const size_t size = list[next[r]].pairs_with_next && next[r] + 1 < list.size() ? 2 : 1;
        if (!done.may_run(rank, list[next[r]])) break;
        if (size == 2 && !done.may_run(rank, list[next[r] + 1])) break;
        for (size_t i = 0; i < size; ++i) {
          const Action& action = list[next[r]++];
          done.run(rank, action);
          order.push_back({static_cast<int32_t>(rank), action});
        }
        moved = true;
      }
    }
  }
  return order;
}

std::string waiting(const Lists& lists, const std::vector<size_t>& next) {
  std::string text;
  for (size_t r = 0; r < lists.size(); ++r)
    if (next[r] < lists[r].size())
      text += fmt::format("{}rank {} at {}", text.empty() ? "" : ", ", r,
                          action_name(lists[r][next[r]]));
  return text;
}

// One rank's list by itself.
class ListCheck {
 public:
  ListCheck(size_t rank, const std::vector<Action>& list, int64_t vpp, int64_t m,
            std::vector<std::string>& lines)
      : rank_(rank), list_(list), vpp_(vpp), m_(m), lines_(lines), seen_(vpp * m) {}

  void check() {
    for (size_t i = 0; i < list_.size(); ++i) {
      const Action& a = list_[i];
      if (a.chunk < 0 || a.chunk >= vpp_ || a.micro_batch < 0 || a.micro_batch >= m_)
        say(a, "does not exist");
      else
        check(a);
      if (a.pairs_with_next) check_pair(i);
    }
    for (size_t i = 0; i < seen_.size(); ++i)
      if (seen_[i] != kAll)
        lines_.push_back(fmt::format("rank {}: micro-batch {} of chunk {} is not complete", rank_,
                                     static_cast<int64_t>(i) % m_, static_cast<int64_t>(i) / m_));
  }

 private:
  static constexpr uint8_t kForward = 1, kInput = 2, kWeights = 4, kAll = 7;

  void say(const Action& action, const char* what) {
    lines_.push_back(fmt::format("rank {}: {} {}", rank_, action_name(action), what));
  }
  void check(const Action& a) {
    uint8_t& seen = seen_[static_cast<size_t>(a.chunk * m_ + a.micro_batch)];
    const auto makes = static_cast<uint8_t>((a.kind == ActionKind::kForward ? kForward : 0) |
                                            (makes_input_gradient(a.kind) ? kInput : 0) |
                                            (makes_weight_gradients(a.kind) ? kWeights : 0));
    if ((seen & makes) != 0) say(a, "runs twice");
    seen |= makes;
    if (makes_input_gradient(a.kind) && (seen & kForward) == 0) say(a, "stands before its forward");
    if (a.kind == ActionKind::kBackwardWeights && (seen & kInput) == 0)
      say(a, "stands before the input's part");
  }
  void check_pair(size_t i) {
    const bool is_pair = i + 1 < list_.size() && list_[i].kind == ActionKind::kForward &&
                         list_[i + 1].kind == ActionKind::kBackward &&
                         list_[i].micro_batch != list_[i + 1].micro_batch;
    if (!is_pair) say(list_[i], "is no pair with what follows");
  }

  size_t rank_;
  const std::vector<Action>& list_;
  int64_t vpp_, m_;
  std::vector<std::string>& lines_;
  std::vector<uint8_t> seen_;
};

}  // namespace

std::vector<std::vector<Action>> all_actions(strategy::PipelineSchedule schedule, int64_t pp,
                                             int64_t num_micro_batches, int64_t vpp) {
  Lists lists;
  for (int64_t rank = 0; rank < pp; ++rank)
    lists.push_back(actions(schedule, pp, rank, num_micro_batches, vpp));
  return lists;
}

std::vector<std::string> execution_problems(strategy::PipelineSchedule schedule, const Lists& lists,
                                            int64_t num_micro_batches, int64_t vpp) {
  std::vector<std::string> lines;
  for (size_t r = 0; r < lists.size(); ++r)
    ListCheck(r, lists[r], vpp, num_micro_batches, lines).check();
  if (!lines.empty()) return lines;  // a run needs every action to exist
  std::vector<size_t> next;
  run_all(schedule, lists, num_micro_batches, vpp, next);
  if (const std::string text = waiting(lists, next); !text.empty())
    lines.push_back("deadlock: " + text);
  return lines;
}

std::vector<RankAction> topological_order(strategy::PipelineSchedule schedule, const Lists& lists,
                                          int64_t num_micro_batches, int64_t vpp) {
  std::vector<size_t> next;
  std::vector<RankAction> order = run_all(schedule, lists, num_micro_batches, vpp, next);
  const std::string text = waiting(lists, next);
  PIPER_CHECK(text.empty(), "deadlock: " + text);
  return order;
}

std::string action_name(const Action& action) {
  const char kind = "FBIW"[static_cast<size_t>(action.kind)];
  if (action.chunk == 0) return fmt::format("{}{}", kind, action.micro_batch);
  return fmt::format("{}{} of chunk {}", kind, action.micro_batch, action.chunk);
}

}  // namespace piper::schedule
