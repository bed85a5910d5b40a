// The cores of this host as a first-come-first-served resource: a rank holds one while it computes, from task to
// task as long as the next one is ready (a hand-over wakes a sleeping thread, which costs as much as a small task).
// Ranks may outnumber cores (4 ranks, 2 cores); handing cores out in order keeps every task undivided, so that its
// measured time is its own and the simulator's rule (sim/play.h) is exactly what happens.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace piper::runtime {

// Thread-safe. num_cores == 0: as many as anyone asks for (acquire never waits).
class Cores {
 public:
  explicit Cores(int64_t num_cores) : free_(num_cores), limited_(num_cores > 0) {}

  void acquire();
  void release();

  // Holds a core for a scope.
  class Hold {
   public:
    explicit Hold(Cores& cores) : cores_(cores) { cores_.acquire(); }
    ~Hold() { cores_.release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Cores& cores_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t free_;
  bool limited_;
  uint64_t next_ticket_ = 0;  // tickets are served in order
  uint64_t serving_ = 0;
};

// Cores that this process may run on (affinity counted).
int64_t num_host_cores();

}  // namespace piper::runtime
