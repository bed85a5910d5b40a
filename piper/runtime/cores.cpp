#include <piper/base/error.h>
#include <piper/runtime/cores.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace piper::runtime {
namespace {

// The calling thread. A refusal is no fault: it then runs where the scheduler puts it.
void run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
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
  std::unique_lock lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return ticket == serving_ && free_ > 0; });
  ++serving_;
  if (--free_ > 0) changed_.notify_all();
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
    ++free_;
    if (held_cpu >= 0) free_cpus_.push_back(held_cpu);
  }
  changed_.notify_all();
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

}  // namespace piper::runtime
