#include <piper/plan/threads.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace piper::plan {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Seconds of cores a second; "max" and -1 set no limit.
double share_of(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

// The share that one group of version 2 allows.
double group_share(const fs::path& group) {
  double quota = -1, period = -1;
  std::ifstream(group / "cpu.max") >> quota >> period;
  return share_of(quota, period);
}

// Version 2: of the process' own group and of all above it.
double nested_share(const fs::path& root) {
  const fs::path top = root / "sys/fs/cgroup";
  double share = group_share(top);
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    for (fs::path own = line.substr(4); !own.empty(); own = own.parent_path())
      share = std::min(share, group_share(top / own));
  }
  return share;
}

double old_share(const fs::path& root) {
  double quota = -1, period = -1;
  std::ifstream(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
  std::ifstream(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  return share_of(quota, period);
}

int64_t num_bound_to() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();
}

// One call of share_items().
class Sharing {
 public:
  Sharing(int64_t count, const std::function<void(int64_t, int64_t)>& do_item)
      : count_(count), do_item_(do_item) {}

  // Items are handed out in order, so that all before one that throws are done or being done.
  void run(int64_t thread, const std::function<void(int64_t)>& tick) {
    for (int64_t item; !is_over_ && (item = next_++) < count_;) {
      try {
        do_item_(thread, item);
      } catch (...) {
        note_failure(item);
      }
      ++done_;
      if (tick) tick(done_);
    }
  }
  void stop() { is_over_ = true; }
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  void note_failure(int64_t item) {
    const std::scoped_lock lock(mutex_);
    if (item < failed_) {
      failed_ = item;
      thrown_ = std::current_exception();
    }
    is_over_ = true;
  }

  const int64_t count_;
  const std::function<void(int64_t, int64_t)>& do_item_;
  std::atomic<int64_t> next_ = 0, done_ = 0;
  std::atomic<bool> is_over_ = false;
  std::mutex mutex_;
  int64_t failed_ = std::numeric_limits<int64_t>::max();
  std::exception_ptr thrown_;
};

}  // namespace

int64_t num_usable_cores(const fs::path& root) {
  const double share = std::min(nested_share(root), old_share(root));
  const auto bound_to = static_cast<double>(num_bound_to());
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(std::min(share, bound_to))));
}

void share_items(int64_t num_threads, int64_t count,
                 const std::function<void(int64_t, int64_t)>& do_item,
                 const std::function<void(int64_t)>& tick) {
  Sharing sharing(count, do_item);
  const bool is_shared = std::min(num_threads, count) > 1;
  {
    std::vector<std::jthread> others;  // joined at the end of this block
    const int64_t num_others = std::min(num_threads, count) - 1;
    try {
      for (int64_t thread = 1; thread <= num_others; ++thread)
        others.emplace_back([&sharing, thread] { sharing.run(thread, {}); });
    } catch (const std::system_error&) {
      // No more threads are to be had: those that there are do the work.
    }
    try {
      sharing.run(0, tick);
    } catch (...) {  // of tick
      sharing.stop();
      throw;
    }
  }
  sharing.rethrow();
  if (is_shared && tick) tick(count);
}

}  // namespace piper::plan
