// What the hub and the members of the control channel have in common: the thread, and what other
// threads wait for. Internal to control*.cpp.
//
// All virtual functions run in the control thread. Other threads reach it by asio::post and wait
// under mutex_.
#pragma once

#include <piper/comm/control.h>
#include <piper/comm/frame_stream.h>
#include <piper/comm/handshake.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace piper::comm {

using Clock = std::chrono::steady_clock;

inline Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Control::Node {
 public:
  Node(const Launch& launch, int64_t num_ranks, const ControlOptions& options,
       ControlEvents events);
  virtual ~Node() = default;

  std::vector<std::string> share(const std::string& what, const std::string& text);
  void report(FailureBody failure);
  void suspect(int64_t process, const std::string& why);
  void stop_admitting();
  void activity_changed();
  bool leave();
  virtual std::string local_address() const = 0;

 protected:
  // Every heartbeat: tells it, and looks who is late at the time when it began. Time in which this
  // process stands still behind that is the next beat's to excuse.
  virtual void beat(Clock::time_point now) = 0;
  virtual void tell_activity() = 0;
  // Adds to what was heard last: time in which this process stood still.
  virtual void excuse(Clock::duration stalled) = 0;
  virtual void take_share(ShareBody share) = 0;
  virtual void stop_admitting_now() = 0;
  virtual void tell_failure(const FailureBody& failure) = 0;
  virtual void say_goodbye() = 0;
  virtual bool all_sent() const = 0;
  virtual void close() = 0;

  void start_thread();
  void stop_thread();                        // the destructors of the final classes begin with it
  void declare(const FailureBody& failure);  // the first one counts
  void declare(Rank rank, std::string reason) { declare({rank, std::move(reason)}); }
  void finish_share(ShareBody share);
  void finish_leaving();
  // Whether a beat speaks of ranks of that process, each once at most.
  bool are_of(int64_t process, const std::vector<RankActivity>& activities) const;
  bool has_failed() const { return failed_in_thread_; }

  Rank first_rank_of(int64_t process) const { return Rank(process * ranks_per_process_); }
  std::string ranks_of(int64_t process) const;          // "rank 3", "ranks 6-7"
  std::string name_of(const Identity& identity) const;  // "rank 3 (host a, pid 7)"
  std::string died(const Identity& who, const std::vector<RankActivity>& last) const;
  std::string hangs(const Identity& who, const std::vector<RankActivity>& last,
                    double seconds) const;

  Launch launch_;
  int64_t num_ranks_;
  int64_t ranks_per_process_;
  ControlOptions options_;
  ControlEvents events_;
  Identity mine_;
  asio::io_context io_;

 private:
  void tick();
  void tell_soon();
  void end_suspicion(int64_t process, const std::string& why);

  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer ticker_, suspicion_, teller_;
  Clock::time_point last_tick_, last_told_;
  std::atomic<bool> will_tell_{false};
  bool failed_in_thread_ = false, suspects_ = false;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_shares_ = 0;
  std::map<uint64_t, ShareBody> shared_;  // complete, not yet taken
  std::optional<FailureBody> failure_;
  bool left_ = false;
};

// What another process says of itself, for a message: control characters other than the end of a
// line become '?', what is beyond `most` bytes is "...".
constexpr size_t kMaxReasonBytes = 16 << 10, kMaxNameBytes = 256;
std::string readable(std::string text, size_t most);
// What another process tells of a failure, its reason readable.
FailureBody shown(FailureBody failure);

// "step 12, 'F3 L2 dispatch'", by rank when there are several.
std::string text_of(const std::vector<RankActivity>& activities);

std::unique_ptr<Control::Node> make_hub(const Launch& launch, int64_t num_ranks,
                                        const ControlOptions& options, ControlEvents events);
std::unique_ptr<Control::Node> make_member(const Launch& launch, int64_t num_ranks,
                                           const ControlOptions& options, ControlEvents events);

}  // namespace piper::comm
