#include <doctest/doctest.h>
#include <piper/plan/threads.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace piper;
using namespace piper::plan;

namespace {

namespace fs = std::filesystem;

struct Root {
  fs::path path;
  Root() {
    std::string name = (fs::temp_directory_path() / "piper-cores-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Root() { fs::remove_all(path); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((path / file).parent_path());
    std::ofstream(path / file) << text;
  }
};

}  // namespace

TEST_CASE("every item is done once, by the threads there are, whatever their number") {
  for (const int64_t threads : {1, 2, 4, 7})
    for (const int64_t count : {0, 1, 3, 100}) {
      CAPTURE(threads);
      CAPTURE(count);
      std::vector<std::atomic<int>> times(static_cast<size_t>(count));
      std::atomic<bool> inside = true;
      share_items(threads, count, [&](int64_t thread, int64_t item) {
        ++times[static_cast<size_t>(item)];
        if (thread < 0 || thread >= threads) inside = false;
      });
      CHECK(inside);
      for (const std::atomic<int>& n : times) CHECK(n == 1);
    }
}

TEST_CASE("several threads are at work at once, none as another's") {
  std::atomic<int> waiting = 0;
  std::vector<std::thread::id> ids(3);
  share_items(3, 3, [&](int64_t thread, int64_t) {
    ++waiting;
    while (waiting < 3) std::this_thread::yield();  // ends when all three have an item
    ids[static_cast<size_t>(thread)] = std::this_thread::get_id();
  });
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK(std::set(ids.begin(), ids.end()).size() == 3);
}

TEST_CASE("of several items that throw, the first in order reaches the caller") {
  for (const int64_t threads : {1, 2, 5}) {
    CAPTURE(threads);
    std::atomic<int> done = 0;
    const auto work = [&](int64_t, int64_t item) {
      ++done;
      // The first takes longer than those behind it.
      if (item == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (item >= 2) throw std::runtime_error("item " + std::to_string(item));
    };
    CHECK_THROWS_WITH(share_items(threads, 1000, work), "item 2");
    CHECK(done < 1000);  // nothing new is begun
  }
}

TEST_CASE("progress comes from the calling thread alone, and only rises") {
  for (const int64_t threads : {1, 3}) {
    int64_t last = 0, calls = 0;
    share_items(
        threads, 50, [](int64_t, int64_t) { std::this_thread::yield(); },
        [&, own = std::this_thread::get_id()](int64_t done) {
          CHECK(std::this_thread::get_id() == own);
          CHECK(done >= last);
          last = done;
          ++calls;
        });
    CHECK(last == 50);
    if (threads == 1) CHECK(calls == 50);
  }
}

TEST_CASE("cores: no more than a control group gives, its own or one above it") {
  const int64_t bound_to = num_usable_cores(Root().path);
  CHECK(bound_to >= 1);
  const Root root;
  root.write("proc/self/cgroup", "0::/jobs/one\n");
  root.write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  CHECK(num_usable_cores(root.path) == bound_to);
  root.write("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n");
  CHECK(num_usable_cores(root.path) == 1);
  root.write("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  CHECK(num_usable_cores(root.path) == std::min<int64_t>(2, bound_to));
  root.write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  CHECK(num_usable_cores(root.path) == 1);
  const Root old;
  old.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  old.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  CHECK(num_usable_cores(old.path) == bound_to);
  old.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  CHECK(num_usable_cores(old.path) == 1);
}
