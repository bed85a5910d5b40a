#include <piper/base/error.h>
#include <piper/executor/cores.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace piper::executor {
namespace {

// The calling thread. A refusal is no fault: it then runs where the scheduler puts it.
void run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// How long the calling thread asks to run at a stretch, in ns. A scheduler that knows of such
// wishes (Linux from 6.12 on; older ones ignore them) lets a thread that wakes interrupt one that
// asked for more: a rank whose message has come does not wait for the end of a computing rank's
// slice (1.4 ms by default on two CPUs).
constexpr uint64_t kComputingSlice = 20'000'000, kWaitingSlice = 100'000;

void ask_for_slice(uint64_t nanoseconds) {
#if defined(SYS_sched_getattr) && defined(SYS_sched_setattr)
  struct {  // the kernel's sched_attr, version 0: the C library has none
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice, deadline, period;
  } wish = {};
  if (syscall(SYS_sched_getattr, 0, &wish, sizeof(wish), 0) != 0 || wish.policy != SCHED_OTHER)
    return;
  wish.size = sizeof(wish);
  wish.slice = nanoseconds;
  syscall(SYS_sched_setattr, 0, &wish, 0);
#else
  static_cast<void>(nanoseconds);
#endif
}

// The CPU that this thread holds; -1: none. A thread holds one core at a time.
thread_local int held_cpu = -1;

}  // namespace

Cores::Cores(std::vector<int> cpus)
    : free_(std::ssize(cpus)), limited_(true), free_cpus_(cpus), all_cpus_(std::move(cpus)) {
  PIPER_CHECK(free_ > 0, "no CPU to bind to");
}

void Cores::acquire() {
  if (!limited_) return;
  acquire_in_turn();
  ask_for_slice(kComputingSlice);
}

int64_t Cores::num_waiting() {
  const std::lock_guard lock(mutex_);
  return std::ssize(waiting_);
}

void Cores::acquire_in_turn() {
  std::unique_lock lock(mutex_);
  if (free_ > 0) {
    --free_;
  } else {
    Waiter self;
    waiting_.push_back(&self);
    self.handed.wait(lock, [&] { return self.has_core; });
  }
  if (all_cpus_.empty()) return;
  // Where the thread runs already, if it may stay.
  const auto here = std::ranges::find(free_cpus_, sched_getcpu());
  const auto mine = here != free_cpus_.end() ? here : free_cpus_.end() - 1;
  held_cpu = *mine;
  free_cpus_.erase(mine);
  lock.unlock();
  run_on({held_cpu});
}

void Cores::release() {
  if (!limited_) return;
  {
    const std::lock_guard lock(mutex_);
    if (held_cpu >= 0) free_cpus_.push_back(held_cpu);
    if (waiting_.empty()) {
      ++free_;
    } else {
      Waiter& next = *waiting_.front();
      waiting_.pop_front();
      next.has_core = true;
      next.handed.notify_one();  // under the lock: it is gone once its thread has seen has_core
    }
  }
  ask_for_slice(kWaitingSlice);
  if (held_cpu < 0) return;
  held_cpu = -1;
  run_on(all_cpus_);
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

std::vector<int> own_cpus(const std::vector<int>& allowed, int64_t index, int64_t num_processes,
                          int64_t ranks_per_process) {
  const int64_t each = std::ssize(allowed) / num_processes;
  if (each == 0 || std::ssize(allowed) % num_processes != 0 || ranks_per_process < each) return {};
  return {allowed.begin() + index * each, allowed.begin() + (index + 1) * each};
}

Cores cores_for(int64_t num_cores, int64_t num_ranks) {
  const std::vector<int> cpus = own_cpus(allowed_cpus(), 0, 1, num_ranks);
  if (!cpus.empty() && std::ssize(cpus) == num_cores) return Cores(cpus);
  return Cores(std::min(num_cores, num_ranks));
}

int64_t num_host_cores() {
  const auto allowed = std::ssize(allowed_cpus());
  return allowed > 0 ? allowed : std::max<int64_t>(1, std::thread::hardware_concurrency());
}

}  // namespace piper::executor
