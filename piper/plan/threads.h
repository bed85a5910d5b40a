// Work that threads share: items by number, each done once by whichever thread is free, in no
// order. Whoever calls it makes what comes out independent of that: items read nothing that another
// writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace piper::plan {

inline constexpr int64_t kMostThreads = 1024;

// Cores that this process may use: those that it is bound to, and no more than its control group's
// share of time (cgroup 2 `cpu.max`, 1 `cpu.cfs_quota_us`), rounded up. At least 1. `root`: of the
// file systems proc and sys, for tests.
int64_t num_usable_cores(const std::filesystem::path& root = "/");

// do_item(thread, item) for every item of [0, count), thread in [0, num_threads); the calling
// thread is thread 0 and the only one that calls `tick` (may be empty), with items done: never
// fewer than the last time, at the end all. What an item throws ends the work and reaches the
// caller when all threads have stopped; of several, what the first item in order threw: those
// before it were begun.
void share_items(int64_t num_threads, int64_t count,
                 const std::function<void(int64_t thread, int64_t item)>& do_item,
                 const std::function<void(int64_t done)>& tick = {});

}  // namespace piper::plan
