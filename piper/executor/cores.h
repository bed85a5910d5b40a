// The cores of this host as a first-come-first-served resource: a rank holds one while it computes,
// from task to task as long as the next one is ready (a hand-over wakes a sleeping thread, which
// costs as much as a small task). Ranks may outnumber cores (4 ranks, 2 cores); handing cores out
// in order keeps every task undivided, so that its measured time is its own and the simulator's
// rule (sim/simulate.h) is exactly what happens.
//
// Where it is known which CPUs these are, a holder is bound to one of its own until it gives the
// core back: left to the scheduler, two holders shared one CPU in one task of ten, each then twice
// as slow, while the other CPU woke threads that only wait. Holders ask the scheduler for long
// slices and ranks that wait for short ones, so that a message is noticed while others compute.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace piper::executor {

// Thread-safe. num_cores == 0: as many as anyone asks for (acquire never waits).
class Cores {
 public:
  explicit Cores(int64_t num_cores) : free_(num_cores), limited_(num_cores > 0) {}
  // One core for every CPU, to which its holder is bound. Requires at least one CPU.
  explicit Cores(std::vector<int> cpus);

  void acquire();
  void release();
  // How many have asked and do not hold a core yet.
  int64_t num_waiting();

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
  // A thread that waits for a core; woken alone, by whoever hands it one.
  struct Waiter {
    std::condition_variable handed;
    bool has_core = false;
  };

  void acquire_in_turn();

  std::mutex mutex_;
  int64_t free_;  // while it is above 0, nobody waits
  bool limited_;
  std::deque<Waiter*> waiting_;  // first come, first served
  std::vector<int> free_cpus_;   // of all_cpus_, bound to nobody
  std::vector<int> all_cpus_;    // empty: nobody is bound
};

// Cores that this process may run on (affinity counted).
int64_t num_host_cores();

// Their CPUs, ascending; empty when the system does not say.
std::vector<int> allowed_cpus();

// The part of `allowed` for one of several processes of a run that may all run on the same CPUs: an
// equal, contiguous one. Empty, which means that nobody should be bound, when the CPUs do not
// divide or a process has fewer ranks than its part (they would be kept from a CPU that nobody
// uses). Process `index` of `num_processes`.
std::vector<int> own_cpus(const std::vector<int>& allowed, int64_t index, int64_t num_processes,
                          int64_t ranks_per_process);

// For ranks that are threads of this process alone: bound where they can be. num_cores 0: without a
// limit.
Cores cores_for(int64_t num_cores, int64_t num_ranks);

}  // namespace piper::executor
