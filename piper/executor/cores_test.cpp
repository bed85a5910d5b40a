#include <doctest/doctest.h>
#include <piper/executor/cores.h>
#include <sched.h>
#include <sys/syscall.h>
#include <tests/switches.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

using piper::executor::Cores;

TEST_CASE("never more holders than cores, and everyone gets one in the end") {
  Cores cores(2);
  std::atomic<int> holders = 0, most = 0, served = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 7; ++i)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Cores::Hold hold(cores);
        const int now = ++holders;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        --holders;
        ++served;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(served == 140);
  CHECK(most <= 2);
}

TEST_CASE("cores are handed out first come, first served") {
  Cores cores(1);
  std::vector<int> order;
  std::vector<std::thread> threads;
  cores.acquire();
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&, i] {
      const Cores::Hold hold(cores);
      order.push_back(i);  // only one thread holds the core
    });
    while (cores.num_waiting() <= i) std::this_thread::yield();
  }
  cores.release();
  for (std::thread& thread : threads) thread.join();
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("without a limit nobody waits") {
  Cores cores(0);
  cores.acquire();
  cores.acquire();
  CHECK(piper::executor::num_host_cores() >= 1);
}

TEST_CASE("bound holders never share a CPU, and are free again afterwards") {
  const int64_t num_cpus = piper::executor::num_host_cores();
  Cores cores(piper::executor::allowed_cpus());
  std::mutex mutex;
  std::vector<int> held;
  std::atomic<int> shared = 0, bound = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < num_cpus + 3; ++i)
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        cores.acquire();
        if (piper::executor::num_host_cores() == 1) ++bound;
        const int cpu = sched_getcpu();
        {
          const std::lock_guard lock(mutex);
          shared += static_cast<int>(std::ranges::count(held, cpu));
          held.push_back(cpu);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        {
          const std::lock_guard lock(mutex);
          held.erase(std::ranges::find(held, cpu));
        }
        cores.release();
      }
      CHECK(piper::executor::num_host_cores() == num_cpus);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(shared == 0);
  CHECK(bound == (num_cpus + 3) * 20);
}

namespace {

// What the calling thread has asked for, in ns; 0 where the kernel does not say.
uint64_t slice() {
  uint64_t attributes[6] = {};  // of the kernel's sched_attr, version 0, the slice is the fourth
#ifdef SYS_sched_getattr
  syscall(SYS_sched_getattr, 0, attributes, sizeof(attributes), 0);
#endif
  return attributes[3];
}

}  // namespace

TEST_CASE("who holds a core runs for long, and who gave it back may interrupt") {
  if (slice() == 0) {
    piper::testing::skip_case("this kernel lets nobody ask for a slice");
    return;
  }
  if (sched_getscheduler(0) != SCHED_OTHER) {
    piper::testing::skip_case("threads of this scheduling class have no slices");
    return;
  }
  std::thread([] {
    Cores cores(piper::executor::allowed_cpus());
    cores.acquire();
    const uint64_t computing = slice();
    cores.release();
    const uint64_t waiting = slice();
    CHECK(computing > 10 * waiting);
    cores.acquire();
    CHECK(slice() == computing);
    cores.release();
  }).join();
}

TEST_CASE("processes of a host divide its CPUs equally, or not at all") {
  using piper::executor::own_cpus;
  CHECK(own_cpus({0, 1, 4, 5}, 1, 2, 2) == std::vector<int>{4, 5});
  CHECK(own_cpus({0, 1, 4, 5}, 0, 1, 7) == std::vector<int>{0, 1, 4, 5});
  CHECK(own_cpus({0, 1, 4, 5}, 0, 1, 3).empty());  // one CPU would stay idle
  CHECK(own_cpus({0, 1, 4}, 0, 2, 2).empty());
  CHECK(own_cpus({0, 1}, 3, 4, 1).empty());
}
