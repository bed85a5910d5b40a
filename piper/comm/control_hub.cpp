#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/control_node.h>
#include <piper/comm/guarded_acceptor.h>
#include <piper/comm/network.h>

#include <algorithm>

namespace piper::comm {
namespace {

using internal::FrameStream;

struct Member {
  std::shared_ptr<FrameStream> stream;  // null before it has joined
  Identity identity;
  std::vector<RankActivity> activities;
  Clock::time_point heard;
  uint64_t num_shares = 0;  // that came from it
  bool left = false;
};

struct PendingShare {
  std::string what;
  std::vector<std::optional<std::string>> texts;  // by process
  Clock::time_point deadline;
};

class Hub final : public Control::Node {
 public:
  Hub(const Launch& launch, int64_t num_ranks, const ControlOptions& options, ControlEvents events)
      : Node(launch, num_ranks, options, std::move(events)), members_(launch.num_processes) {
    for (int64_t p = 0; p < launch.num_processes; ++p) members_[p].identity.process = p;
    members_[0].identity = mine_;
    open();
    start_thread();
  }
  ~Hub() override { stop_thread(); }

  std::string local_address() const override { return address_; }

 private:
  void open() {
    address_ =
        numeric_address(options_.interface.empty() ? launch_.master_address : options_.interface);
    int fd = launch_.listen_fd;
    if (fd < 0) fd = listen_on(address_, launch_.master_port, options_.reach()).fd;
    check_reach(fd, options_.reach());
    acceptor_.emplace(io_, fd,
                      internal::Introduction{"control", launch_.secret, mine_,
                                             options_.introduction_timeout_seconds},
                      mine_.num_processes,
                      [this](const std::shared_ptr<FrameStream>& stream, const Identity& who) {
                        join(stream, who);
                      });
  }

  void join(const std::shared_ptr<FrameStream>& stream, const Identity& who) {
    if (const std::string problem = problem_of(who); !problem.empty()) {
      stream->send(FrameKind::kReject, encode(FailureBody{Rank(0), problem}));
      stream->close_after_sending();
      if (who.num_processes != mine_.num_processes || who.num_ranks != num_ranks_)
        declare(Rank(0), fmt::format("process {} cannot join: {}", who.process, problem));
      return;
    }
    Member& member = members_[who.process];
    member = {stream, who, {}, Clock::now()};
    member.identity.host = printable(who.host);
    stream->set_limit(kMaxFrameBytes);
    stream->listen([this, p = who.process](const Frame& frame) { take(p, frame); },
                   [this, p = who.process](const std::string&) { lose(p); });
    stream->send(FrameKind::kBeat, encode(events_.activity()));  // it has joined
    if (told_) stream->send(FrameKind::kFailure, encode(*told_));
  }

  std::string problem_of(const Identity& who) const {
    if (who.num_processes != mine_.num_processes || who.num_ranks != num_ranks_)
      return fmt::format(
          "it was started as one of {} processes with {} ranks, process 0 as one of "
          "{} with {}",
          who.num_processes, who.num_ranks, mine_.num_processes, num_ranks_);
    if (who.process < 1 || who.process >= mine_.num_processes)
      return fmt::format("there is no process {}", who.process);
    const Member& member = members_[who.process];
    if (member.stream != nullptr)
      return fmt::format("process {} has joined already, from host {}, pid {}", who.process,
                         member.identity.host, member.identity.pid);
    return "";
  }

  void take(int64_t process, const Frame& frame) {
    Member& member = members_[process];
    member.heard = Clock::now();
    switch (frame.kind) {
      case FrameKind::kBeat:
        if (auto activities = parse_beat(frame.body); activities && are_of(process, *activities))
          return hear(member, std::move(*activities));
        return nonsense(process);
      case FrameKind::kFailure:
        if (const auto failure = parse_failure(frame.body);
            failure && failure->rank.value < num_ranks_)
          return declare(shown(*failure));
        return nonsense(process);
      case FrameKind::kShare:
        if (auto share = parse_share(frame.body);
            share && share->texts.size() == 1 && share->number == member.num_shares) {
          ++member.num_shares;
          return collect(process, std::move(*share));
        }
        return nonsense(process);
      case FrameKind::kGoodbye:
        member.left = true;
        for (const auto& [number, share] : shares_)
          if (!share.texts[process]) missing(share, process);
        return end_when_all_left();
      case FrameKind::kChallenge:
      case FrameKind::kHello:
      case FrameKind::kWelcome:
      case FrameKind::kReject:
      case FrameKind::kShared:
      case FrameKind::kKnock:
        return nonsense(process);  // nothing that a member says
    }
  }

  void hear(Member& member, std::vector<RankActivity> activities) {
    for (RankActivity& activity : activities)
      activity.operation = readable(activity.operation, kMaxNameBytes);
    member.activities = std::move(activities);
  }

  void nonsense(int64_t process) {
    members_[process].stream->close();
    declare(first_rank_of(process),
            fmt::format("{} speaks nonsense: is it another version of Piper?",
                        name_of(members_[process].identity)));
  }

  void lose(int64_t process) {
    const Member& member = members_[process];
    if (!member.left) declare(first_rank_of(process), died(member.identity, member.activities));
  }

  void take_share(ShareBody share) override { collect(0, std::move(share)); }

  void collect(int64_t process, ShareBody share) {
    const auto [place, first] = shares_.try_emplace(share.number);
    PendingShare& pending = place->second;
    if (first) {
      pending = {share.what, std::vector<std::optional<std::string>>(members_.size()),
                 Clock::now() + duration_of(share.number == 0 ? options_.connect_timeout_seconds
                                                              : options_.share_timeout_seconds)};
    } else if (pending.what != share.what) {
      return declare(first_rank_of(process),
                     fmt::format("it shares '{}', others share '{}'", printable(share.what),
                                 printable(pending.what)));
    }
    num_held_ += share.texts.front().size() + sizeof(uint32_t);
    if (num_held_ + share.what.size() + sizeof(ShareBody) > kMaxFrameBytes)
      return declare(first_rank_of(process),
                     fmt::format("the texts that all share have more than {} bytes in '{}'",
                                 kMaxFrameBytes, printable(share.what)));
    pending.texts[process] = std::move(share.texts.front());
    bool whole = true;
    for (size_t p = 0; p < members_.size(); ++p) {
      if (pending.texts[p]) continue;
      if (members_[p].left) return missing(pending, static_cast<int64_t>(p));
      whole = false;
    }
    if (whole) complete(place->first);
  }

  void complete(uint64_t number) {
    ShareBody result{number, shares_.at(number).what, {}};
    for (auto& text : shares_.at(number).texts) {
      num_held_ -= text->size() + sizeof(uint32_t);
      result.texts.push_back(std::move(*text));
    }
    shares_.erase(number);
    tell(FrameKind::kShared, encode(result));
    finish_share(std::move(result));
  }

  void missing(const PendingShare& share, int64_t process) {
    const Member& member = members_[process];
    if (process != 0 && member.stream == nullptr)
      return declare(first_rank_of(process),
                     fmt::format("process {} has not joined in time (the others wait in '{}'){}",
                                 process, share.what, trouble()));
    declare(first_rank_of(process),
            fmt::format("{} {} while the others wait in '{}'; last: {}", name_of(member.identity),
                        member.left ? "left" : "does not come", share.what,
                        text_of(process == 0 ? events_.activity() : member.activities)));
  }

  std::string trouble() const {
    const std::string& text = acceptor_->trouble();
    return text.empty() ? "" : "; process 0 can accept nobody: " + text;
  }

  void stop_admitting_now() override { acceptor_->close(); }

  void tell(FrameKind kind, const std::vector<std::byte>& body) {
    for (const Member& member : members_)
      if (member.stream != nullptr) member.stream->send(kind, body);
  }

  void tell_failure(const FailureBody& failure) override {
    told_ = failure;
    tell(FrameKind::kFailure, encode(failure));
  }

  void tell_activity() override {
    const std::vector<std::byte> body = encode(events_.activity());
    for (const Member& member : members_)  // to one that reads nothing now, the next one goes
      if (member.stream != nullptr && member.stream->all_sent())
        member.stream->send(FrameKind::kBeat, body);
  }

  void beat(Clock::time_point now) override {
    tell_activity();
    if (has_failed()) return;
    for (const Member& member : members_) {
      if (member.stream == nullptr || member.left) continue;
      const double silent = std::chrono::duration<double>(now - member.heard).count();
      if (silent > options_.heartbeat_timeout_seconds)
        declare(first_rank_of(member.identity.process),
                hangs(member.identity, member.activities, silent) + others(member));
    }
    for (const auto& [number, share] : shares_)
      for (size_t p = 0; p < members_.size() && now > share.deadline && !has_failed(); ++p)
        if (!share.texts[p]) missing(share, static_cast<int64_t>(p));
  }

  // "; rank 0: step 3, 'x'; rank 1: ..." of every rank but those of one process.
  std::string others(const Member& but) const {
    std::string text;
    for (const Member& member : members_) {
      if (&member == &but) continue;
      for (const RankActivity& activity :
           member.identity.process == 0 ? events_.activity() : member.activities)
        text += fmt::format("; rank {}: {}", activity.rank.value, text_of({activity}));
    }
    return text;
  }

  void excuse(Clock::duration stalled) override {
    for (Member& member : members_) member.heard += stalled;
    for (auto& [number, share] : shares_) share.deadline += stalled;
  }

  void say_goodbye() override {
    members_[0].left = true;
    end_when_all_left();
  }

  void end_when_all_left() {
    if (!std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.left; }))
      return;
    tell(FrameKind::kGoodbye, {});
    finish_leaving();
  }

  bool all_sent() const override {
    return std::all_of(members_.begin(), members_.end(), [](const Member& member) {
      return member.stream == nullptr || member.stream->all_sent();
    });
  }

  void close() override {
    acceptor_->close();
    for (const Member& member : members_)
      if (member.stream != nullptr) member.stream->close();
  }

  std::vector<Member> members_;  // by process; the first is this one
  std::optional<internal::GuardedAcceptor> acceptor_;
  std::string address_;
  std::map<uint64_t, PendingShare> shares_;
  size_t num_held_ = 0;  // bytes of their texts
  std::optional<FailureBody> told_;
};

}  // namespace

std::unique_ptr<Control::Node> make_hub(const Launch& launch, int64_t num_ranks,
                                        const ControlOptions& options, ControlEvents events) {
  return std::make_unique<Hub>(launch, num_ranks, options, std::move(events));
}

}  // namespace piper::comm
