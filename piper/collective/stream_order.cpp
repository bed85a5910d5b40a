#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/races.h>
#include <piper/collective/stream_order.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace piper::collective {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class OrderWriter {
 public:
  explicit OrderWriter(const MemberSteps& member)
      : steps_(member.steps), behind_(steps_.size(), -1), before_(steps_.size(), kNever) {
    for (size_t s = 0; s < steps_.size(); ++s) follow(s);
    for (size_t s = steps_.size(); s-- > 0;) precede(s);
    for (size_t s = 0; s < steps_.size(); ++s)
      if (moves(steps_[s]))
        (is_message(steps_[s]) ? messages_ : local_).push_back(static_cast<int32_t>(s));
  }

  StreamOrder write() {
    std::sort(messages_.begin(), messages_.end(), [&](int32_t a, int32_t b) {
      return std::tuple(steps_[a].round, steps_[a].part, a) <
             std::tuple(steps_[b].round, steps_[b].part, b);
    });
    std::sort(local_.begin(), local_.end(), [&](int32_t a, int32_t b) {
      return std::tuple(behind_[a], before_[a], a) < std::tuple(behind_[b], before_[b], b);
    });
    for (size_t first = 0; first < messages_.size();) {
      const int32_t round = steps_[messages_[first]].round;
      write_local(round);
      size_t end = first;
      while (end < messages_.size() && steps_[messages_[end]].round == round) ++end;
      group(round, first, end);
      first = end;
    }
    write_local(kNever);
    return std::move(result_);
  }

 private:
  // The last round among the messages that step s comes after, itself included.
  void follow(size_t s) {
    for (const int32_t before : steps_[s].after) behind_[s] = std::max(behind_[s], behind_[before]);
    if (!is_message(steps_[s]) || !moves(steps_[s])) return;
    PIPER_CHECK(steps_[s].round > behind_[s],
                fmt::format("step {} of round {} comes after a message of round {}", s,
                            steps_[s].round, behind_[s]));
    behind_[s] = steps_[s].round;
  }

  // The first round among the messages that come after step s.
  void precede(size_t s) {
    const bool message = is_message(steps_[s]) && moves(steps_[s]);
    const int64_t own = message ? steps_[s].round : before_[s];
    for (const int32_t before : steps_[s].after) before_[before] = std::min(before_[before], own);
  }

  // The local steps that come after messages of earlier rounds alone, as far as not yet written.
  void write_local(int64_t round) {
    while (num_local_ < local_.size() && behind_[local_[num_local_]] < round) {
      const int32_t first = local_[num_local_];
      size_t end = num_local_;
      while (end < local_.size() && behind_[local_[end]] == behind_[first] &&
             before_[local_[end]] == before_[first])
        ++end;
      int32_t waits_for = -1;
      if (behind_[first] > last_waited_) waits_for = group_of_.at(behind_[first]);
      last_waited_ = std::max(last_waited_, behind_[first]);
      local_of_[before_[first]] = next();
      launch(Lane::kLocal, local_, num_local_, end, waits_for);
      num_local_ = end;
    }
  }

  void group(int32_t round, size_t first, size_t end) {
    const auto needed = local_of_.find(round);
    group_of_[round] = next();
    launch(Lane::kMessages, messages_, first, end, needed == local_of_.end() ? -1 : needed->second);
  }

  int32_t next() const { return static_cast<int32_t>(result_.launches.size()); }

  void launch(Lane lane, const std::vector<int32_t>& from, size_t first, size_t end,
              int32_t waits_for) {
    result_.launches.push_back({.lane = lane,
                                .first = static_cast<int32_t>(result_.steps.size()),
                                .count = static_cast<int32_t>(end - first),
                                .waits_for = waits_for});
    if (waits_for >= 0) result_.launches[waits_for].waited_for = true;
    for (size_t i = first; i < end; ++i) result_.steps.push_back(from[i]);
  }

  const std::vector<Step>& steps_;
  std::vector<int64_t> behind_;  // by step; -1: comes after no message
  std::vector<int64_t> before_;  // by step; kNever: before none
  std::vector<int32_t> messages_, local_;
  size_t num_local_ = 0;                 // written
  int64_t last_waited_ = -1;             // round after which the local lane is
  std::map<int64_t, int32_t> group_of_;  // by round: the launch
  std::map<int64_t, int32_t> local_of_;  // by round that waits for it: the last launch
  StreamOrder result_;
};

}  // namespace

bool is_message(const Step& step) {
  return step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
}

bool moves(const Step& step) {
  if (moves_rows(step.kind)) return step.num_rows > 0;
  return (step.kind == StepKind::kReceive ? step.target : step.source).count > 0;
}

StreamOrder stream_order(const MemberSteps& member) { return OrderWriter(member).write(); }

int64_t num_groups(const StreamOrder& order) {
  return std::count_if(order.launches.begin(), order.launches.end(),
                       [](const Launch& launch) { return launch.lane == Lane::kMessages; });
}

}  // namespace piper::collective
