#include <doctest/doctest.h>
#include <piper/runtime/cores.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using piper::runtime::Cores;

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
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // let it take its ticket
  }
  cores.release();
  for (std::thread& thread : threads) thread.join();
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("without a limit nobody waits") {
  Cores cores(0);
  cores.acquire();
  cores.acquire();
  CHECK(piper::runtime::num_host_cores() >= 1);
}
