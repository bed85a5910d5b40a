#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/caller.h>
#include <piper/comm/control_node.h>
#include <piper/comm/network.h>

#include <asio/post.hpp>
#include <future>

namespace piper::comm {
namespace {

using internal::Caller;
using internal::FrameStream;

class MemberNode final : public Control::Node {
 public:
  MemberNode(const Launch& launch, int64_t num_ranks, const ControlOptions& options,
             ControlEvents events)
      : Node(launch, num_ranks, options, std::move(events)),
        caller_(std::make_shared<Caller>(
            io_, call_to(numeric_address(launch.master_address)),
            [this](const std::shared_ptr<FrameStream>& stream, const Identity* who,
                   const std::string& why) { meet(stream, who, why); })) {
    start_thread();
    asio::post(io_, [this] { caller_->start(); });
    const std::string problem = joined_.get_future().get();
    if (problem.empty()) return;
    stop_thread();
    throw CommError(fmt::format("{}: cannot join the run at {}:{}: {}", ranks_of(mine_.process),
                                launch.master_address, launch.master_port, problem));
  }
  ~MemberNode() override { stop_thread(); }

  std::string local_address() const override { return address_; }

 private:
  Caller::Options call_to(const std::string& hub) const {
    return {.to = {asio::ip::make_address(hub), static_cast<uint16_t>(launch_.master_port)},
            .introduction = {"control", launch_.secret, mine_},
            .limit_seconds = options_.connect_timeout_seconds};
  }

  void meet(const std::shared_ptr<FrameStream>& stream, const Identity* who,
            const std::string& why) {
    if (who == nullptr) return end_joining(why + " (another run's port, or another PIPER_SECRET?)");
    if (who->process != 0 || who->num_processes != mine_.num_processes)
      return end_joining(
          fmt::format("process {} of {} listens there, not process 0 of {} (another run's port?)",
                      who->process, who->num_processes, mine_.num_processes));
    stream_ = stream;
    address_ = stream->local_address();
    hub_ = *who;
    hub_.host = printable(who->host);
    heard_ = Clock::now();
    stream_->set_limit(kMaxFrameBytes);
    stream_->listen([this](const Frame& frame) { take(frame); },
                    [this](const std::string&) { lose(); });
  }

  void end_joining(const std::string& problem) {
    if (joining_) joined_.set_value(problem);
    joining_ = false;
  }

  void take(const Frame& frame) {
    heard_ = Clock::now();
    if (frame.kind == FrameKind::kReject) {
      const auto rejected = parse_failure(frame.body);
      return end_joining(rejected ? readable(rejected->reason, kMaxReasonBytes)
                                  : "it was rejected");
    }
    end_joining("");  // the hub's first word
    switch (frame.kind) {
      case FrameKind::kBeat:
        if (auto activities = parse_beat(frame.body); activities && are_of(0, *activities))
          activities_ = std::move(*activities);
        return;
      case FrameKind::kFailure:
        if (const auto failure = parse_failure(frame.body);
            failure && failure->rank.value < num_ranks_) {
          told_ = true;
          declare(shown(*failure));
        }
        return;
      case FrameKind::kShared:
        if (auto share = parse_share(frame.body);
            share && static_cast<int64_t>(share->texts.size()) == mine_.num_processes)
          finish_share(std::move(*share));
        return;
      case FrameKind::kGoodbye:
        hub_left_ = true;
        return finish_leaving();
      case FrameKind::kChallenge:
      case FrameKind::kHello:
      case FrameKind::kWelcome:
      case FrameKind::kReject:
      case FrameKind::kShare:
      case FrameKind::kKnock:
        return;  // nothing that the hub says
    }
  }

  void lose() {
    if (joining_) return end_joining("it closed the connection");
    if (!hub_left_) declare(Rank(0), died(hub_, activities_));
  }

  void take_share(ShareBody share) override { stream_->send(FrameKind::kShare, encode(share)); }

  void tell_failure(const FailureBody& failure) override {
    if (!told_ && stream_) stream_->send(FrameKind::kFailure, encode(failure));
  }

  void tell_activity() override {
    if (!joining_ && !hub_left_ && stream_->all_sent())
      stream_->send(FrameKind::kBeat, encode(events_.activity()));
  }

  void beat(Clock::time_point now) override {
    if (joining_ || hub_left_) return;
    tell_activity();
    const double silent = std::chrono::duration<double>(now - heard_).count();
    if (silent > options_.heartbeat_timeout_seconds)
      declare(Rank(0), hangs(hub_, activities_, silent));
  }

  void stop_admitting_now() override {}  // nobody calls a member here
  void excuse(Clock::duration stalled) override { heard_ += stalled; }
  void say_goodbye() override { stream_->send(FrameKind::kGoodbye); }
  bool all_sent() const override { return stream_ == nullptr || stream_->all_sent(); }

  void close() override {
    caller_->close();
    if (stream_) stream_->close();
  }

  std::shared_ptr<Caller> caller_;
  std::string address_;
  Clock::time_point heard_;
  std::shared_ptr<FrameStream> stream_;
  std::promise<std::string> joined_;  // what is in the way, or ""
  bool joining_ = true, told_ = false, hub_left_ = false;
  Identity hub_;
  std::vector<RankActivity> activities_;  // of the hub's ranks
};

}  // namespace

std::unique_ptr<Control::Node> make_member(const Launch& launch, int64_t num_ranks,
                                           const ControlOptions& options, ControlEvents events) {
  return std::make_unique<MemberNode>(launch, num_ranks, options, std::move(events));
}

}  // namespace piper::comm
