#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>

#include <algorithm>
#include <utility>

namespace piper::collective {
namespace {

constexpr uint32_t kScatterPart = 0;
constexpr uint32_t kGatherPart = 1;

// Writes one member's list; remembers which step brings a peer's values and which one sends ours
// away.
class Writer {
 public:
  Writer(int64_t member, int64_t num_members, int64_t count)
      : member_(member),
        n_(num_members),
        count_(count),
        own_(reduce_share(member, num_members, count)),
        received_(num_members, -1),
        sent_(num_members, -1) {
    result_.output_count = count;
    result_.scratch_count = (n_ - 1) * own_.count;
  }

  MemberSteps write() {
    scatter();
    const int32_t sum = add();
    gather(sum);
    return std::move(result_);
  }

 private:
  int32_t push(Step step) {
    result_.steps.push_back(std::move(step));
    return static_cast<int32_t>(result_.steps.size()) - 1;
  }
  int64_t before(int64_t distance) const { return (member_ - distance + n_) % n_; }
  int64_t behind(int64_t distance) const { return (member_ + distance) % n_; }

  // Where `peer`'s values of our share wait.
  Block scratch(int64_t peer) const {
    const int64_t slot = peer < member_ ? peer : peer - 1;
    return {Buffer::kScratch, slot * own_.count, own_.count};
  }

  void scatter() {
    for (int64_t distance = 1; distance < n_; ++distance) {
      const int64_t peer = before(distance);
      received_[peer] = push({.kind = StepKind::kReceive,
                              .peer = static_cast<int32_t>(peer),
                              .part = kScatterPart,
                              .target = scratch(peer)});
    }
    for (int64_t distance = 1; distance < n_; ++distance) {
      const int64_t peer = behind(distance);
      sent_[peer] = push({.kind = StepKind::kSend,
                          .peer = static_cast<int32_t>(peer),
                          .part = kScatterPart,
                          .source = reduce_share(peer, n_, count_)});
    }
  }

  // The chain of additions; returns its last step, after which our share is the sum.
  int32_t add() {
    int32_t last = -1;
    const auto chain = [&](Block source, Block target, int64_t peer) {
      std::vector<int32_t> after{received_[peer]};
      if (last >= 0) after.push_back(last);
      last = push({.kind = StepKind::kAdd, .source = source, .target = target, .after = after});
    };
    if (member_ > 1) {
      chain(scratch(1), scratch(0), 1);
      result_.steps[last].after.push_back(received_[0]);
    }
    for (int64_t peer = 2; peer < member_; ++peer) chain(scratch(peer), scratch(0), peer);
    if (member_ > 0) chain(scratch(0), own_, 0);
    for (int64_t peer = member_ + 1; peer < n_; ++peer) chain(scratch(peer), own_, peer);
    return last;
  }

  void gather(int32_t sum) {
    for (int64_t distance = 1; distance < n_; ++distance)
      push({.kind = StepKind::kSend,
            .peer = static_cast<int32_t>(behind(distance)),
            .part = kGatherPart,
            .source = own_,
            .after = {sum}});
    // A sum lands where our values of that share were: they must have left.
    for (int64_t distance = 1; distance < n_; ++distance) {
      const int64_t peer = before(distance);
      push({.kind = StepKind::kReceive,
            .peer = static_cast<int32_t>(peer),
            .part = kGatherPart,
            .target = reduce_share(peer, n_, count_),
            .after = {sent_[peer]}});
    }
  }

  int64_t member_, n_, count_;
  Block own_;
  std::vector<int32_t> received_, sent_;  // by peer: index of the step
  MemberSteps result_;
};

}  // namespace

Block reduce_share(int64_t member, int64_t num_members, int64_t count) {
  const int64_t each = count / num_members, rest = count % num_members;
  return {Buffer::kOutput, member * each + std::min(member, rest), each + (member < rest ? 1 : 0)};
}

MemberSteps all_reduce_direct(int64_t member, int64_t num_members, int64_t count) {
  PIPER_CHECK(member >= 0 && member < num_members && count >= 0);
  return Writer(member, num_members, count).write();
}

}  // namespace piper::collective
