// A program for tests/comm_mpi.py to start under an mpirun, and for measuring by hand:
//   process_probe patterns R     R ranks in all compare what they exchange with what has to come
//   process_probe fail R         rank 1 fails
//   process_probe bench R        latency and bandwidth
// Process 0 says how it went; the exit code is 0 when all went well.
#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/comm/bench.h>
#include <piper/comm/process_world.h>
#include <piper/comm/world_patterns.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace piper::comm {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void print(const char* name, const std::vector<Sample>& samples) {
  for (const Sample& sample : samples)
    fmt::print("{:<18}{:>10} bytes {:>10.1f} us {:>8.2f} GB/s\n", name, sample.bytes,
               1e6 * sample.seconds, 1e-9 * static_cast<double>(sample.bytes) / sample.seconds);
}

void bench(World& world) {
  const BenchOptions options{.budget_seconds = 3};
  const std::vector<int64_t> sizes{8, 1024, 8192, 65536, 1 << 20, 16 << 20};
  print("to the next rank", measure_point_to_point(world, sizes, options));
  print("all-to-all", measure_all_to_all(world, sizes, options));
  world.share("idle", "");
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  if (world.process() == 0) fmt::print("idle: {:.1f} % of a core\n", 50 * (cpu_seconds() - before));
}

int run(const std::string& mode, int64_t num_ranks) {
  const std::optional<Launch> launch = launch_from();
  if (!launch) throw InvalidInput("no launcher started several processes");
  const auto world = make_process_world(*launch, num_ranks, {control_options_from()});
  if (mode == "bench") {
    bench(*world);
    return 0;
  }
  if (mode == "fail")
    run_ranks(*world, [](Transport& transport) {
      if (transport.rank() == Rank(1)) throw IoError("the disk is full");
      while (true) transport.wait_completion(transport.wait_completion(~uint64_t{0}, 0), 1);
    });
  bool right = true;
  for (const std::string& wrong : world->share("result", wrong_patterns(*world))) {
    if (world->process() == 0) fmt::print("{}", wrong);
    right = right && wrong.empty();
  }
  if (right && world->process() == 0)
    fmt::print("{} ranks in {} processes started by {}: right\n", num_ranks, launch->num_processes,
               to_string(launch->launcher));
  return right ? 0 : 1;
}

}  // namespace
}  // namespace piper::comm

int main(int argc, char** argv) {
  try {
    return piper::comm::run(argc > 1 ? argv[1] : "patterns", argc > 2 ? std::atoll(argv[2]) : 4);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
