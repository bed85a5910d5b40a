// For tests that hold promised times on machines that may be busy: how late this machine is. A
// promise is held to what remains when that is subtracted, so that the limit stays the promised
// one.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace piper::comm {

// On the steady clock, which all processes of a machine share.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A thread that sleeps for 5 ms again and again, and notes by how much it wakes too late.
// Thread-safe.
class Lateness {
 public:
  Lateness()
      : thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            const double due = now_seconds() + 0.005;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            const std::lock_guard lock(mutex_);
            late_.emplace_back(due, now_seconds() - due);
          }
        }) {}

  // Seconds in all, of what was due between the two times.
  double between(double begin, double end) const {
    const std::lock_guard lock(mutex_);
    double sum = 0;
    for (const auto& [due, late] : late_)
      if (due >= begin && due < end) sum += late;
    return sum;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<double, double>> late_;  // when due, by how much
  std::jthread thread_;
};

}  // namespace piper::comm
