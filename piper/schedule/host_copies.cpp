#include <piper/schedule/action.h>
#include <piper/schedule/host_copies.h>

#include <algorithm>

namespace piper::schedule {
namespace {

constexpr int32_t kSoon = 3;  // actions from a forward to its backward that make no copy worth it
constexpr size_t kLeaving =
    2;  // forwards that may be on the device, the running one included, before the oldest has left
constexpr size_t kComing = 2;        // backwards that are waited for or brought
constexpr int32_t kAtMostAhead = 4;  // actions

class Plan {
 public:
  Plan(std::vector<Action> actions, int64_t vpp, int64_t num_micro_batches)
      : actions_(std::move(actions)), m_(num_micro_batches), lives_(static_cast<size_t>(vpp * m_)) {
    const size_t n = lives_.size();
    out_ = {.is_copied = std::vector<char>(n),
            .starts_behind = std::vector<int32_t>(n, HostCopies::kNone),
            .back = {}};
    for (int32_t i = 0; i < static_cast<int32_t>(actions_.size()); ++i) {
      const Action& action = actions_[static_cast<size_t>(i)];
      Life& life = lives_[index(action)];
      if (action.kind == Action::Kind::kForward) life.forward = i;
      if (makes_input_gradient(action.kind)) {
        life.backward = i;
        out_.is_copied[index(action)] = i > life.forward + kSoon;
        if (out_.is_copied[index(action)]) wanted_.push_back(index(action));
      }
    }
    out_.copied_part = static_cast<double>(wanted_.size()) / static_cast<double>(n);
  }

  HostCopies make() {
    for (int32_t i = 0; i < static_cast<int32_t>(actions_.size()); ++i) {
      const Action& action = actions_[static_cast<size_t>(i)];
      if (action.kind == Action::Kind::kForward) begin_forward(index(action));
      if (makes_input_gradient(action.kind) && out_.is_copied[index(action)]) ++used_;
      if (makes_weight_gradients(action.kind)) --held_;
      if (!action.pairs_with_next) bring(i);
    }
    return std::move(out_);
  }

 private:
  struct Life {
    int32_t forward = 0, backward = 0;
    size_t leaves = 0;  // place among those that leave
  };

  size_t index(const Action& action) const {
    return static_cast<size_t>(action.chunk * m_ + action.micro_batch);
  }

  void hold() { out_.most_held = std::max(out_.most_held, ++held_); }

  void begin_forward(size_t which) {
    if (out_.is_copied[which]) {
      if (leaving_.size() >= kLeaving) {
        const size_t before = leaving_[leaving_.size() - kLeaving];
        out_.starts_behind[which] = static_cast<int32_t>(before);
        has_left(leaving_.size() - kLeaving + 1);
      }
      lives_[which].leaves = leaving_.size();
      leaving_.push_back(which);
    }
    hold();
  }

  // The first `count` copied forwards.
  void has_left(size_t count) {
    for (; left_ < count; ++left_) --held_;
  }

  void bring(int32_t place) {
    for (; brought_ < wanted_.size() && brought_ - used_ < kComing; ++brought_) {
      const size_t which = wanted_[brought_];
      const Life& life = lives_[which];
      if (life.forward > place || life.backward > place + kAtMostAhead) return;
      out_.back.push_back({place, static_cast<int32_t>(which)});
      has_left(life.leaves + 1);
      hold();
    }
  }

  std::vector<Action> actions_;
  int64_t m_;
  std::vector<Life> lives_;
  std::vector<size_t> wanted_,
      leaving_;  // copied ones in the order of their backwards, of their forwards
  size_t brought_ = 0, used_ = 0, left_ = 0;
  int64_t held_ = 0;
  HostCopies out_;
};

}  // namespace

HostCopies host_copies(strategy::PipelineSchedule schedule, int64_t pp, int64_t vpp,
                       int64_t num_micro_batches, int64_t stage) {
  return Plan(actions(schedule, pp, stage, num_micro_batches, vpp), vpp, num_micro_batches).make();
}

}  // namespace piper::schedule
