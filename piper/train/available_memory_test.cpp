#include <doctest/doctest.h>
#include <piper/train/available_memory.h>
#include <tests/test_folder.h>

#include <limits>

namespace piper::train {
namespace {

TEST_CASE("the machine's available memory, or less when the control group leaves less") {
  const piper::testing::TestFolder root;
  CHECK(available_memory_bytes(root.path()) == std::numeric_limits<int64_t>::max());
  root.write(
      "proc/meminfo",
      "MemTotal:       2000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\nSwapFree: 5 kB\n");
  CHECK(available_memory_bytes(root.path()) == 1'024'000);
  root.write("sys/fs/cgroup/memory.current", "500000\n");
  root.write("sys/fs/cgroup/memory.max", "max\n");
  CHECK(available_memory_bytes(root.path()) == 1'024'000);
  root.write("sys/fs/cgroup/memory.max", "700000\n");
  CHECK(available_memory_bytes(root.path()) == 200'000);
  root.write("sys/fs/cgroup/memory.max", "400000\n");
  CHECK(available_memory_bytes(root.path()) == 0);
  CHECK(available_memory_bytes() > 0);
}

}  // namespace
}  // namespace piper::train
