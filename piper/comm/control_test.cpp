#include <doctest/doctest.h>
#include <piper/comm/control.h>
#include <piper/comm/network.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

namespace piper::comm {
namespace {

// One of two processes' control channels, in this process: its thread can be held in the middle of
// a beat, as a machine that is suspended just then holds it.
class Beating {
 public:
  Beating(const Listener& listener, int64_t process, double heartbeat_timeout_seconds)
      : control_({.process = process,
                  .num_processes = 2,
                  .master_address = kLoopback,
                  .master_port = listener.port,
                  .secret = "s",
                  .listen_fd = process == 0 ? listener.fd : -1},
                 2,
                 {.heartbeat_seconds = 0.1, .heartbeat_timeout_seconds = heartbeat_timeout_seconds},
                 {.failed =
                      [this](const FailureBody& failure) {
                        const std::lock_guard lock(mutex_);
                        failure_ = failure.reason;
                      },
                  .activity =
                      [this] {
                        std::this_thread::sleep_for(hold_.exchange({}));
                        return std::vector<RankActivity>{};
                      }}) {}

  void hold(std::chrono::milliseconds time) { hold_ = time; }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  Control& control() { return control_; }

 private:
  std::atomic<std::chrono::milliseconds> hold_{std::chrono::milliseconds(0)};
  std::mutex mutex_;
  std::string failure_;
  Control control_;
};

TEST_CASE("who stands still in the middle of a beat takes nobody else for one that hangs") {
  for (const int64_t held : {0, 1}) {
    CAPTURE(held);
    const Listener listener = listen_on(kLoopback, 0);
    const auto timeout = [&](int64_t process) { return process == held ? 2.0 : 60.0; };
    std::unique_ptr<Beating> hub, member;
    std::thread calls([&] { member = std::make_unique<Beating>(listener, 1, timeout(1)); });
    hub = std::make_unique<Beating>(listener, 0, timeout(0));
    calls.join();
    (held == 0 ? hub : member)->hold(std::chrono::milliseconds(3000));
    std::this_thread::sleep_for(std::chrono::milliseconds(4000));
    CHECK(hub->failure() == "");
    CHECK(member->failure() == "");
    std::thread leaves([&] { CHECK(member->control().leave()); });
    CHECK(hub->control().leave());
    leaves.join();
  }
}

}  // namespace
}  // namespace piper::comm
