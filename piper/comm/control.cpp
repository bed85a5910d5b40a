#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/printable.h>
#include <piper/comm/control_node.h>
#include <piper/comm/local_state.h>
#include <piper/comm/network.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <charconv>
#include <future>

namespace piper::comm {
namespace {

constexpr double kFlushSeconds = 1;      // of what a failing process still has to tell
constexpr double kSuspicionSeconds = 1;  // for the true cause of a lost connection to be known

}  // namespace

ControlOptions control_options_from(const LookUp& look_up) {
  ControlOptions options;
  options.interface = look_up("PIPER_INTERFACE").value_or("");
  const std::string everywhere = look_up("PIPER_LISTEN_EVERYWHERE").value_or("0");
  if (everywhere != "0" && everywhere != "1")
    throw InvalidInput(
        fmt::format("PIPER_LISTEN_EVERYWHERE is '{}'; allowed: 0, 1", printable(everywhere)));
  options.listen_everywhere = everywhere == "1";
  if (const auto text = look_up("PIPER_HEARTBEAT_SECONDS")) {
    double seconds = 0;
    const char* end = text->data() + text->size();
    const auto [rest, error] = std::from_chars(text->data(), end, seconds);
    if (error != std::errc() || rest != end || !(seconds >= 1 && seconds <= 86400))
      throw InvalidInput(fmt::format(
          "PIPER_HEARTBEAT_SECONDS is '{}'; allowed: a number of seconds from 1 to 86400", *text));
    options.heartbeat_timeout_seconds = seconds;
  }
  return options;
}

std::string readable(std::string text, size_t most) {
  if (text.size() > most) text = text.substr(0, most) + "...";
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

FailureBody shown(FailureBody failure) {
  failure.reason = readable(std::move(failure.reason), kMaxReasonBytes);
  return failure;
}

bool Control::Node::are_of(int64_t process, const std::vector<RankActivity>& activities) const {
  if (activities.size() > static_cast<size_t>(ranks_per_process_)) return false;
  for (const RankActivity& activity : activities)
    if (!activity.rank.valid() || activity.rank.value / ranks_per_process_ != process) return false;
  return true;
}

std::string text_of(const std::vector<RankActivity>& activities) {
  std::string text;
  for (const RankActivity& activity : activities) {
    if (!text.empty()) text += "; ";
    if (activities.size() > 1) text += fmt::format("rank {}: ", activity.rank.value);
    const bool has_step = activity.step >= 0, has_operation = !activity.operation.empty();
    if (has_step) text += fmt::format("step {}", activity.step);
    if (has_operation)  // a bench counts no steps
      text += fmt::format("{}'{}'", has_step ? ", " : "", activity.operation);
    if (!has_step && !has_operation) text += "before its first step";
  }
  return text.empty() ? "before its first step" : text;
}

Control::Node::Node(const Launch& launch, int64_t num_ranks, const ControlOptions& options,
                    ControlEvents events)
    : launch_(launch),
      num_ranks_(num_ranks),
      ranks_per_process_(num_ranks / launch.num_processes),
      options_(options),
      events_(std::move(events)),
      mine_{launch.process, launch.num_processes, num_ranks, host_name(), getpid()},
      work_(asio::make_work_guard(io_)),
      ticker_(io_),
      suspicion_(io_),
      teller_(io_) {}

void Control::Node::start_thread() {
  last_tick_ = Clock::now();
  asio::post(io_, [this] { tick(); });
  thread_ = std::thread([this] {
    for (;;) {  // whoever posts here waits for an answer, whatever has happened
      try {
        io_.run();
        return;
      } catch (const std::exception& error) {
        declare(first_rank_of(mine_.process),
                fmt::format("its control thread: {}", cause_of(error)));
      }
    }
  });
}

void Control::Node::stop_thread() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    ticker_.cancel();
    suspicion_.cancel();
    teller_.cancel();
    close();
    io_.stop();
  });
  thread_.join();
}

void Control::Node::tick() {
  const Clock::time_point now = Clock::now();
  const Clock::duration interval = duration_of(options_.heartbeat_seconds), gap = now - last_tick_;
  last_tick_ = now;
  if (gap > 2 * interval) excuse(gap - interval);
  beat(now);
  ticker_.expires_after(interval);
  ticker_.async_wait([this](const asio::error_code& error) {
    if (!error) tick();
  });
}

std::vector<std::string> Control::Node::share(const std::string& what, const std::string& text) {
  PIPER_CHECK((text.size() + what.size() + 64) * mine_.num_processes < kMaxFrameBytes,
              fmt::format("'{}' has {} bytes", what, text.size()));
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = num_shares_++;
  }
  asio::post(io_, [this, share = ShareBody{number, what, {text}}] { take_share(share); });
  // The hub gives up first, and knows who is missing.
  const double limit = options_.share_timeout_seconds + options_.connect_timeout_seconds +
                       options_.heartbeat_timeout_seconds;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, duration_of(limit),
                    [&] { return failure_.has_value() || shared_.contains(number); });
  const auto place = shared_.find(number);
  if (place != shared_.end()) {
    std::vector<std::string> texts = std::move(place->second.texts);
    shared_.erase(place);
    return texts;
  }
  const std::string mine = ranks_of(mine_.process);
  if (!failure_)
    throw CommError(
        fmt::format("{}: sharing '{}': rank 0 does not answer for {:.0f} s", mine, what, limit));
  const std::string problem =
      fmt::format("{}: sharing '{}': {}", mine, what,
                  internal::sentence({failure_->rank, failure_->reason, failure_->fault}));
  if (failure_->fault == Fault::kInput) throw InvalidInput(problem);
  throw CommError(problem);
}

void Control::Node::finish_share(ShareBody share) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = share.number;
  shared_[number] = std::move(share);
  changed_.notify_all();
}

void Control::Node::report(FailureBody failure) {
  asio::post(io_, [this, failure = std::move(failure)] { declare(failure); });
}

void Control::Node::declare(const FailureBody& failure) {
  if (failed_in_thread_) return;
  failed_in_thread_ = true;
  tell_failure(failure);
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    changed_.notify_all();
  }
  if (events_.failed) events_.failed(failure);
}

// A chatty run is told of in turns: what comes meanwhile is told with the next one.
void Control::Node::activity_changed() {
  if (!will_tell_.exchange(true)) asio::post(io_, [this] { tell_soon(); });
}

void Control::Node::tell_soon() {
  const double seconds =
      std::max(kActivitySeconds, 2e-4 * static_cast<double>(mine_.num_processes));
  teller_.expires_at(last_told_ + duration_of(seconds));
  teller_.async_wait([this](const asio::error_code& stopped) {
    if (stopped) return;
    last_told_ = Clock::now();
    will_tell_ = false;
    if (!failed_in_thread_) tell_activity();
  });
}

void Control::Node::suspect(int64_t process, const std::string& why) {
  asio::post(io_, [this, process, why] {
    if (suspects_) return;  // the first counts, however often it is said
    suspects_ = true;
    suspicion_.expires_after(duration_of(kSuspicionSeconds));
    suspicion_.async_wait([this, process, why](const asio::error_code& error) {
      if (!error) end_suspicion(process, why);
    });
  });
}

void Control::Node::end_suspicion(int64_t process, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
  }
  declare(first_rank_of(process), fmt::format("its messages no longer come through: {}", why));
}

void Control::Node::stop_admitting() {
  asio::post(io_, [this] { stop_admitting_now(); });
}

bool Control::Node::leave() {
  asio::post(io_, [this] {
    if (!failed_in_thread_) say_goodbye();
  });
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, duration_of(options_.leave_timeout_seconds),
                    [&] { return failure_.has_value() || left_; });
  if (left_) return true;
  lock.unlock();
  const Clock::time_point until = Clock::now() + duration_of(kFlushSeconds);
  bool sent = false;
  while (!sent && Clock::now() < until) {
    std::promise<bool> answer;
    asio::post(io_, [&] { answer.set_value(all_sent()); });
    sent = answer.get_future().get();
    if (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

void Control::Node::finish_leaving() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

std::string Control::Node::ranks_of(int64_t process) const {
  const int64_t first = process * ranks_per_process_;
  return ranks_per_process_ == 1
             ? fmt::format("rank {}", first)
             : fmt::format("ranks {}-{}", first, first + ranks_per_process_ - 1);
}

std::string Control::Node::name_of(const Identity& identity) const {
  return fmt::format("{} (host {}, pid {})", ranks_of(identity.process), identity.host,
                     identity.pid);
}

std::string Control::Node::died(const Identity& who, const std::vector<RankActivity>& last) const {
  const bool is_known =
      !last.empty() && (last.front().step >= 0 || !last.front().operation.empty());
  const char* between = last.size() > 1 ? "; " : is_known ? " in " : " ";
  return fmt::format("{} died: its connection was lost{}{}", name_of(who), between, text_of(last));
}

std::string Control::Node::hangs(const Identity& who, const std::vector<RankActivity>& last,
                                 double seconds) const {
  return fmt::format("{} hangs: no heartbeat for {:.1f} s; last: {}", name_of(who), seconds,
                     text_of(last));
}

Control::Control(const Launch& launch, int64_t num_ranks, const ControlOptions& options,
                 ControlEvents events)
    : node_(launch.process == 0 ? make_hub(launch, num_ranks, options, std::move(events))
                                : make_member(launch, num_ranks, options, std::move(events))) {}

Control::~Control() = default;

std::vector<std::string> Control::share(const std::string& what, const std::string& text) {
  return node_->share(what, text);
}
void Control::report(FailureBody failure) { node_->report(std::move(failure)); }
void Control::suspect(int64_t process, const std::string& why) { node_->suspect(process, why); }
void Control::activity_changed() { node_->activity_changed(); }
void Control::stop_admitting() { node_->stop_admitting(); }
bool Control::leave() { return node_->leave(); }
std::string Control::local_address() const { return node_->local_address(); }

}  // namespace piper::comm
