#include <piper/cli/stop_signals.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

namespace piper::cli {
namespace {

constexpr int64_t kSameRequestNs = 50'000'000;

std::atomic<int64_t> first_ns{0};  // of the monotonic clock; 0: none has come
static_assert(std::atomic<int64_t>::is_always_lock_free, "used in a signal handler");

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // safe in a signal handler (POSIX)
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

extern "C" void on_stop_signal(int signal) {
  const int saved_errno = errno;
  const int64_t now = now_ns();
  int64_t first = 0;
  if (first_ns.compare_exchange_strong(first, now)) {
    static constexpr std::string_view kText =
        "\npiper: asked to stop: finishing this step and saving; once more stops now\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
  } else if ((signal == SIGTERM || signal == SIGINT) && now - first > kSameRequestNs) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  errno = saved_errno;
}

struct Deadly {
  int signal;
  std::string_view text;
};
constexpr std::array kDeadly{
    Deadly{SIGQUIT, "\npiper: ended at once by SIGQUIT; what was saved before stays\n"},
    Deadly{SIGUSR1, "\npiper: ended at once by SIGUSR1; what was saved before stays\n"},
    Deadly{SIGUSR2, "\npiper: ended at once by SIGUSR2; what was saved before stays\n"},
    Deadly{SIGALRM, "\npiper: ended at once by SIGALRM; what was saved before stays\n"},
    Deadly{SIGXCPU,
           "\npiper: ended at once by SIGXCPU, the limit of processor time (ulimit -t); "
           "what was saved before stays\n"}};

extern "C" void on_deadly_signal(int signal) {
  for (const Deadly& deadly : kDeadly)
    if (deadly.signal == signal) {
      [[maybe_unused]] const auto written =
          ::write(STDERR_FILENO, deadly.text.data(), deadly.text.size());
    }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void handle_unless_ignored(int signal, void (*handler)(int)) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  if (action.sa_handler == SIG_IGN && signal != SIGTERM) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

void say_deadly_signals() {
  for (const Deadly& deadly : kDeadly) handle_unless_ignored(deadly.signal, on_deadly_signal);
}

void catch_stop_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGUSR1})
    handle_unless_ignored(signal, on_stop_signal);
}

bool stop_requested() { return first_ns.load() > 0; }

}  // namespace piper::cli
