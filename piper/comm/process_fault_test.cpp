#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/comm/network.h>
#include <piper/comm/operations.h>
#include <piper/comm/process_world.h>
#include <signal.h>
#include <sys/wait.h>
#include <testing/base/text.h>
#include <testing/comm/lateness.h>
#include <tests/switches.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

namespace piper::comm {
namespace {

// Real processes, forked: each executes `body` in a world of its own and leaves what it throws, and
// when. They are forked while this process has one thread (ThreadSanitizer follows no other fork):
// a Lateness begins after them.
class Processes {
 public:
  Processes(int64_t num_processes, int64_t num_ranks, const ProcessOptions& options,
            const std::function<void(World&)>& body) {
    const Listener listener = listen_on(kLoopback, 0);
    for (int64_t p = 0; p < num_processes; ++p) {
      std::array<int, 2> pipe_ends{};
      REQUIRE(pipe(pipe_ends.data()) == 0);
      const pid_t pid = fork();
      REQUIRE(pid >= 0);
      if (pid == 0) {
        const Launch launch{.process = p,
                            .num_processes = num_processes,
                            .master_address = kLoopback,
                            .master_port = listener.port,
                            .secret = "s",
                            .listen_fd = p == 0 ? listener.fd : -1};
        if (p != 0) ::close(listener.fd);
        execute(launch, num_ranks, options, body, pipe_ends[1]);
      }
      ::close(pipe_ends[1]);
      pids_.push_back(pid);
      results_.push_back(pipe_ends[0]);
    }
    ::close(listener.fd);
  }

  ~Processes() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    for (const int fd : results_) ::close(fd);
  }

  pid_t pid(int64_t process) const { return pids_[process]; }
  void signal(int64_t process, int number) const { REQUIRE(::kill(pids_[process], number) == 0); }

  struct Result {
    double seconds = 0;  // on the steady clock
    std::string thrown;
  };
  // When the process has ended.
  Result result(int64_t process) const {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t size = read(results_[process], buffer.data(), buffer.size());
      if (size <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(size));
    }
    Result result;
    std::istringstream in(text);
    in >> result.seconds;
    std::getline(in >> std::ws, result.thrown, '\0');
    return result;
  }

 private:
  [[noreturn]] static void execute(const Launch& launch, int64_t num_ranks,
                                   const ProcessOptions& options,
                                   const std::function<void(World&)>& body, int out) {
    std::string thrown;
    double when = 0;
    try {
      const auto world = make_process_world(launch, num_ranks, options);
      try {
        body(*world);
        when = now_seconds();
      } catch (...) {
        when = now_seconds();
        throw;
      }
    } catch (const std::exception& error) {
      thrown = error.what();
    }
    const std::string text = fmt::format("{} {}", when, thrown);
    if (write(out, text.data(), text.size()) < 0) _exit(1);
    _exit(0);
  }

  std::vector<pid_t> pids_;
  std::vector<int> results_;
};

// Every rank waits for messages of all others that never come.
void wait_for_all(World& world) {
  run_ranks(world, [&](Transport& transport) {
    const int64_t me = transport.rank().value;
    world.note(transport.rank(), 12, fmt::format("F{} L2 dispatch", me));
    std::vector<std::byte> bytes(transport.world_size());
    std::vector<std::unique_ptr<Operation>> operations;
    for (int64_t r = 0; r < transport.world_size(); ++r)
      if (r != me)
        operations.push_back(start_receive(transport, Rank(r), {1, "F0 L2 dispatch"},
                                           std::span(bytes).subspan(r, 1)));
    for (const auto& operation : operations) wait(transport, *operation, 60);
  });
}

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// "" when a process ended with all of `parts` in what it threw, more than `least` and less than
// `most` seconds after `begin`, what the machine was late in between not counted.
std::string missing(const Processes::Result& result, const Lateness& lateness, double begin,
                    double least, double most, const std::vector<std::string>& parts) {
  const double seconds = result.seconds - begin, late = lateness.between(begin, result.seconds);
  std::string wrong;
  if (seconds <= least || seconds - late >= most)
    wrong =
        fmt::format("noticed after {:.2f} s on a machine that was {:.2f} s late; ", seconds, late);
  for (const std::string& part : parts)
    if (!contains(result.thrown, part))
      wrong += fmt::format("no '{}' in {}; ", part, result.thrown);
  return wrong;
}

// How often each fault is injected.
int64_t num_rounds() { return testing::repetitions({.usual = 2, .full = 100}); }

ProcessOptions beating(double heartbeat_timeout_seconds = 10) {
  ProcessOptions options;
  options.control.heartbeat_seconds = 0.1;
  options.control.heartbeat_timeout_seconds = heartbeat_timeout_seconds;
  return options;
}

TEST_CASE("a killed process is named by all others within 2 seconds, with what it did last") {
  for (int64_t round = 0; round < num_rounds(); ++round) {
    const int64_t victim = (round * 3 + 2) % 4;  // 2, 1, 0, 3
    const Processes processes(4, 4, beating(), wait_for_all);
    const Lateness lateness;
    sleep_seconds(0.7 + 0.01 * static_cast<double>(round % 37));
    const double killed = now_seconds();
    processes.signal(victim, SIGKILL);
    for (int64_t p = 0; p < 4; ++p)
      if (p != victim)
        CHECK(missing(processes.result(p), lateness, killed, 0, 2,
                      {fmt::format("rank {} (host {}, pid {}) died: its connection was "
                                   "lost in step 12, 'F{} L2 dispatch'",
                                   victim, host_name(), processes.pid(victim), victim)}) == "");
  }
}

TEST_CASE("what a killed process did last is known although it hardly ever beats") {
  ProcessOptions options;
  options.control.heartbeat_seconds = 60;
  for (const int64_t victim : {1, 0}) {
    const Processes processes(2, 2, options, [&](World& world) {
      world.share("met", "");
      for (int64_t step = 0; step < 6; ++step) {
        world.note(Rank(world.process()), step, "F0");
        sleep_seconds(0.01);
      }
      world.note(Rank(world.process()), 5, "update");
      if (world.process() != victim) world.share("never", "");
      sleep_seconds(60);
    });
    sleep_seconds(1.5);
    processes.signal(victim, SIGKILL);
    const std::string thrown = processes.result(1 - victim).thrown;
    CAPTURE(thrown);
    CHECK(contains(thrown, "its connection was lost in step 5, 'update'"));
  }
}

TEST_CASE("of a killed process with several ranks, all are named") {
  const Processes processes(2, 4, beating(), wait_for_all);
  const Lateness lateness;
  sleep_seconds(0.7);
  const double killed = now_seconds();
  processes.signal(1, SIGKILL);
  CHECK(missing(processes.result(0), lateness, killed, 0, 2,
                {fmt::format("ranks 2-3 (host {}, pid {}) died: its connection was lost; rank 2: "
                             "step 12, 'F2 L2 dispatch'; rank 3: step 12, 'F3 L2 dispatch'",
                             host_name(), processes.pid(1))}) == "");
}

TEST_CASE("a stopped process is named within the time limit and a second, with what all did last") {
  constexpr double kLimit = 2;
  for (int64_t round = 0; round < num_rounds(); ++round) {
    const int64_t victim = (round + 1) % 2;
    const Processes processes(3, 3, beating(kLimit), wait_for_all);
    const Lateness lateness;
    sleep_seconds(0.7);
    const double stopped = now_seconds();
    processes.signal(victim, SIGSTOP);
    std::vector<std::string> parts{
        fmt::format("rank {} (host {}, pid {}) hangs: no heartbeat for {:.0f}", victim, host_name(),
                    processes.pid(victim), kLimit),
        fmt::format("last: step 12, 'F{} L2 dispatch'", victim)};
    if (victim == 1)
      parts.emplace_back("; rank 0: step 12, 'F0 L2 dispatch'; rank 2: step 12, 'F2 L2 dispatch'");
    for (int64_t p = 0; p < 3; ++p)
      if (p != victim)
        CHECK(missing(processes.result(p), lateness, stopped, kLimit / 2, kLimit + 1, parts) == "");
  }
}

TEST_CASE("a machine that stands still as a whole raises no alarm when it goes on") {
  const Processes processes(3, 3, beating(3), [](World& world) {  // signals may come apart
    sleep_seconds(0.3);
    world.share("before", "");
    sleep_seconds(5);
    world.share("after", "");
  });
  sleep_seconds(1);
  for (const int64_t p : {1, 2, 0}) processes.signal(p, SIGSTOP);
  sleep_seconds(4);
  for (const int64_t p : {0, 1, 2}) processes.signal(p, SIGCONT);
  for (int64_t p = 0; p < 3; ++p) CHECK(processes.result(p).thrown == "");
}

TEST_CASE("a killed process in the middle of large messages hangs nobody") {
  for (int64_t round = 0; round < num_rounds(); ++round) {
    const Processes processes(3, 3, beating(), [](World& world) {
      run_ranks(world, [](Transport& transport) {
        const Group group{{Rank(0), Rank(1), Rank(2)}, transport.rank().value};
        const std::vector<int64_t> each(3, 4 << 20);
        std::vector<std::byte> sent(12 << 20), received(12 << 20);
        for (uint64_t key = 0;; ++key)
          wait(transport,
               *start_all_to_all(transport, group, {key, "exchange"}, sent, each, received, each),
               60);
      });
    });
    const Lateness lateness;
    sleep_seconds(0.7 + 0.013 * static_cast<double>(round % 41));
    const double killed = now_seconds();
    processes.signal(1, SIGKILL);
    CHECK(missing(processes.result(0), lateness, killed, 0, 2, {"rank 1 (host "}) == "");
    CHECK(missing(processes.result(2), lateness, killed, 0, 2, {"rank 1 (host "}) == "");
  }
}

}  // namespace
}  // namespace piper::comm
