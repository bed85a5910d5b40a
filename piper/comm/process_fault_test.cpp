#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/comm/network.h>
#include <piper/comm/operations.h>
#include <piper/comm/patiently.h>
#include <piper/comm/process_world.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <sstream>
#include <thread>

namespace piper::comm {
namespace {

using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double now_seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Real processes, forked: each plays `body` in a world of its own and leaves what it throws, and
// when.
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
        play(launch, num_ranks, options, body, pipe_ends[1]);
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
  [[noreturn]] static void play(const Launch& launch, int64_t num_ranks,
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

// "" when a process ended with all of `parts` in what it threw, more than `least` and less than `most` seconds after `begin`.
std::string missing(const Processes::Result& result, double begin, double least, double most,
                    const std::vector<std::string>& parts) {
  const double seconds = result.seconds - begin;
  std::string wrong;
  if (seconds <= least || seconds >= most) wrong = fmt::format("noticed after {:.2f} s; ", seconds);
  for (const std::string& part : parts)
    if (!contains(result.thrown, part))
      wrong += fmt::format("no '{}' in {}; ", part, result.thrown);
  return wrong;
}

ProcessOptions beating(double heartbeat_timeout_seconds = 10) {
  ProcessOptions options;
  options.control.heartbeat_seconds = 0.1;
  options.control.heartbeat_timeout_seconds = heartbeat_timeout_seconds;
  return options;
}

TEST_CASE("a killed process is named by all others within 2 seconds, with what it did last") {
  for (const int64_t victim : {2, 0})
    CHECK(patiently([&](double slack) {
            const Processes processes(4, 4, beating(10 * slack), wait_for_all);
            sleep_seconds(0.7 * slack);
            const double killed = now_seconds();
            processes.signal(victim, SIGKILL);
            std::string wrong;
            for (int64_t p = 0; p < 4; ++p)
              if (p != victim)
                wrong += missing(processes.result(p), killed, 0, 2 * slack,
                                 {fmt::format("rank {} (host {}, pid {}) died: its connection was "
                                              "lost in step 12, 'F{} L2 dispatch'",
                                              victim, host_name(), processes.pid(victim), victim)});
            return wrong;
          }) == "");
}

TEST_CASE("of a killed process with several ranks, all are named") {
  CHECK(patiently([](double slack) {
          const Processes processes(2, 4, beating(), wait_for_all);
          sleep_seconds(0.7 * slack);
          const double killed = now_seconds();
          processes.signal(1, SIGKILL);
          return missing(
              processes.result(0), killed, 0, 60,
              {fmt::format("ranks 2-3 (host {}, pid {}) died: its connection was lost; rank 2: "
                           "step 12, 'F2 L2 dispatch'; rank 3: step 12, 'F3 L2 dispatch'",
                           host_name(), processes.pid(1))});
        }) == "");
}

TEST_CASE("a stopped process is named within the time limit and a second, with what all did last") {
  for (const int64_t victim : {1, 0})
    CHECK(patiently([&](double slack) {
            const Processes processes(3, 3, beating(slack), wait_for_all);
            sleep_seconds(0.7 * slack);
            const double stopped = now_seconds();
            processes.signal(victim, SIGSTOP);
            std::vector<std::string> parts{
                fmt::format("rank {} (host {}, pid {}) hangs: no heartbeat for {:.0f}", victim,
                            host_name(), processes.pid(victim), slack),
                fmt::format("last: step 12, 'F{} L2 dispatch'", victim)};
            if (victim == 1)
              parts.emplace_back(
                  "; rank 0: step 12, 'F0 L2 dispatch'; rank 2: step 12, 'F2 L2 dispatch'");
            std::string wrong;
            for (int64_t p = 0; p < 3; ++p)
              if (p != victim)
                wrong += missing(processes.result(p), stopped, 0.5 * slack, 2 * slack, parts);
            return wrong;
          }) == "");
}

TEST_CASE("a machine that stands still as a whole raises no alarm when it goes on") {
  CHECK(patiently([](double slack) {
          // A busy machine may keep the signals apart.
          const Processes processes(3, 3, beating(1.5 * slack), [&](World& world) {
            sleep_seconds(0.3 * slack);
            world.share("before", "");
            sleep_seconds(3.5 * slack);
            world.share("after", "");
          });
          sleep_seconds(0.8 * slack);
          for (const int64_t p : {1, 2, 0}) processes.signal(p, SIGSTOP);
          sleep_seconds(2.5 * slack);
          for (const int64_t p : {0, 1, 2}) processes.signal(p, SIGCONT);
          std::string thrown;
          for (int64_t p = 0; p < 3; ++p) thrown += processes.result(p).thrown;
          return thrown;
        }) == "");
}

TEST_CASE("a killed process in the middle of large messages hangs nobody") {
  CHECK(patiently([](double slack) {
          const Processes processes(3, 3, beating(), [](World& world) {
            run_ranks(world, [](Transport& transport) {
              const Group group{{Rank(0), Rank(1), Rank(2)}, transport.rank().value};
              const std::vector<int64_t> each(3, 4 << 20);
              std::vector<std::byte> sent(12 << 20), received(12 << 20);
              for (uint64_t key = 0;; ++key)
                wait(transport,
                     *start_all_to_all(transport, group, {key, "exchange"}, sent, each, received,
                                       each),
                     60);
            });
          });
          sleep_seconds(slack);
          const double killed = now_seconds();
          processes.signal(1, SIGKILL);
          return missing(processes.result(0), killed, 0, 2 * slack, {"rank 1 (host "}) +
                 missing(processes.result(2), killed, 0, 2 * slack, {"rank 1 (host "});
        }) == "");
}

}  // namespace
}  // namespace piper::comm
