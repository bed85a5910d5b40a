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

TEST_CASE("a job's control group limits the tasks in it, under both versions") {
  for (const bool is_second : {true, false}) {
    CAPTURE(is_second);
    const piper::testing::TestFolder root;
    const std::string top = is_second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory";
    const auto set = [&](const std::string& group, const std::string& limit, int64_t used) {
      root.write(top + group + (is_second ? "/memory.max" : "/memory.limit_in_bytes"), limit);
      root.write(top + group + (is_second ? "/memory.current" : "/memory.usage_in_bytes"),
                 std::to_string(used));
    };
    root.write("proc/self/cgroup", is_second ? "1:name=systemd:/\n0::/slurm/job_7/step_0\n"
                                             : "5:cpu,memory:/slurm/job_7/step_0\n0::/other\n");
    CHECK(available_memory_bytes(root.path()) == std::numeric_limits<int64_t>::max());
    set("/slurm/job_7/step_0", is_second ? "max" : "9223372036854771712", 100);
    set("/slurm/job_7", "5000", 2000);
    CHECK(available_memory_bytes(root.path()) == 3000);
    set("/slurm/job_7/step_0", "2500", 1000);
    CHECK(available_memory_bytes(root.path()) == 1500);
    // The kernel drops pages of files before it ends a process.
    root.write(top + "/slurm/job_7/step_0/memory.stat",
               is_second ? "anon 7\ninactive_file 400\n" : "cache 7\ntotal_inactive_file 400\n");
    CHECK(available_memory_bytes(root.path()) == 1900);
    set("/slurm/job_8", "10", 10);  // of others
    CHECK(available_memory_bytes(root.path()) == 1900);
    set("", "1200", 0);  // a container that shows its own group as the topmost one
    CHECK(available_memory_bytes(root.path()) == 1200);
  }
}

}  // namespace
}  // namespace piper::train
