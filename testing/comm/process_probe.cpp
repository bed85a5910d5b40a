// A program for tests/comm_mpi.py to start under an mpirun, and for measuring by hand:
//   process_probe patterns R     R ranks in all compare what they exchange with what has to come
//   process_probe fail R         rank 1 fails
//   process_probe bench R        latency and bandwidth
//   process_probe fault KIND ALGORITHM R    KIND: dies, hangs, disagrees (about sizes), swaps (two exchanges), other (operation),
//                                type (of elements);   in the middle of exchanges, rank 1 does; every other rank says
//                                what it noticed, and when; without a launcher: R threads
// Process 0 says how it went; the exit code is 0 when all went well.
#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/comm/bench.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>
#include <piper/comm/process_world.h>
#include <signal.h>
#include <sys/resource.h>
#include <testing/comm/world_patterns.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
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

// Rank 1 fails in its fourth exchange: its process, where it has one of its own, else its thread.
void go_wrong(const std::string& how, bool is_process) {
  if (how == "dies") {
    if (is_process) raise(SIGKILL);
    throw IoError("the thread ends here");
  }
  if (how == "hangs") {
    if (is_process) raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(6));
  }
}

// What ranks do in place of an exchange: rank 1 alone a sum ("other"), or all a sum, rank 1 of
// another type than the others ("type"). Null: the exchange.
std::unique_ptr<Operation> sum_instead(Transport& transport, const Group& group,
                                       const std::string& how, const OperationName& name) {
  static thread_local std::vector<double> numbers(1024);
  const bool is_wrong = transport.rank() == Rank(1);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(numbers));
  if (how == "type")
    return start_all_reduce(transport, group, name,
                            is_wrong ? Element::kFloat64 : Element::kFloat32,
                            is_wrong ? bytes : bytes.first(bytes.size() / 2));
  if (!is_wrong) return nullptr;
  return start_all_reduce(transport, group, {name.key, "sum for " + name.what}, Element::kFloat64,
                          bytes);
}

void exchange_until_it_fails(World& world, Transport& transport, const std::string& how,
                             collective::AllToAll algorithm) {
  constexpr double kTimeout = 2;
  constexpr int64_t kExchanges = 8, kFaulty = 3;
  const int64_t n = world.size(), me = transport.rank().value;
  const collective::Topology topology =
      n % 2 == 0 ? collective::even_nodes(2, n / 2) : collective::apart(n);
  Group group{.members = {}, .index = me};
  for (int64_t r = 0; r < n; ++r) group.members.emplace_back(r);
  auto began = std::chrono::steady_clock::now();
  try {
    for (int64_t i = 0; i < kExchanges; ++i) {
      const bool is_wrong = i == kFaulty && me == 1;
      const auto count = [&](int64_t from, int64_t to) {
        return 4096 + 64 * from + 8 * to + (is_wrong && how == "disagrees" && from == 1 ? 8 : 0);
      };
      const collective::MemberSteps steps = collective::all_to_all(algorithm, me, topology, count);
      std::vector<std::byte> input(static_cast<size_t>(steps.input_count)),
          output(static_cast<size_t>(steps.output_count));
      // Rank 1 swaps two exchanges.
      const bool is_swapped = how == "swaps" && me == 1 && (i == kFaulty || i == kFaulty + 1);
      const int64_t number = is_swapped ? 2 * kFaulty + 1 - i : i;
      const std::string what = fmt::format("exchange {}", number);
      began = std::chrono::steady_clock::now();
      world.note(transport.rank(), i, what);
      if (is_wrong) go_wrong(how, world.num_processes() > 1);
      if (i == kFaulty && (how == "other" || how == "type")) {
        if (const auto sum = sum_instead(transport, group, how, {static_cast<uint64_t>(i), what}))
          wait(transport, *sum, kTimeout);
        if (is_wrong || how == "type") continue;
      }
      const auto exchange = make_exchange(transport, group, what, steps, input, output);
      exchange->start(static_cast<uint64_t>(number));
      wait(transport, *exchange, kTimeout);
    }
  } catch (const std::exception& error) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    fmt::print("after {:.2f} s {}\n", waited.count(), error.what());
    std::fflush(stdout);
    throw;
  }
}

int fail(const std::string& how, const std::string& algorithm, int64_t num_ranks) {
  const auto found = std::ranges::find(strategy::kAllToAlls, algorithm,
                                       [](strategy::AllToAll a) { return strategy::name(a); });
  if (found == strategy::kAllToAlls.end())
    throw InvalidInput(fmt::format("no exchange is called '{}'", algorithm));
  const std::optional<Launch> launch = launch_from();
  const std::unique_ptr<World> world =
      launch ? make_process_world(*launch, num_ranks, {control_options_from()})
             : std::make_unique<LocalWorld>(num_ranks);
  run_ranks(*world,
            [&](Transport& transport) { exchange_until_it_fails(*world, transport, how, *found); });
  fmt::print("nothing went wrong\n");
  return 0;
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
    if (argc == 5 && std::string(argv[1]) == "fault")
      return piper::comm::fail(argv[2], argv[3], std::atoll(argv[4]));
    return piper::comm::run(argc > 1 ? argv[1] : "patterns", argc > 2 ? std::atoll(argv[2]) : 4);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
