#include <piper/runtime/cores.h>
#include <sched.h>

#include <algorithm>
#include <thread>

namespace piper::runtime {

void Cores::acquire() {
  if (!limited_) return;
  std::unique_lock lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return ticket == serving_ && free_ > 0; });
  ++serving_;
  if (--free_ > 0) changed_.notify_all();
}

void Cores::release() {
  if (!limited_) return;
  {
    const std::lock_guard lock(mutex_);
    ++free_;
  }
  changed_.notify_all();
}

int64_t num_host_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace piper::runtime
