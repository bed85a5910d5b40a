#include <piper/cli/stop_signals.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

namespace piper::cli {
namespace {

std::atomic<int> num_signals{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void on_stop_signal(int signal) {
  if (num_signals.fetch_add(1) > 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  static constexpr std::string_view kText =
      "\npiper: asked to stop: finishing this step and saving; once more stops now\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText.data(), kText.size());
}

}  // namespace

void catch_stop_signals() {
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

bool stop_requested() { return num_signals.load() > 0; }

}  // namespace piper::cli
