#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cli/console.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace piper::cli {
namespace {

std::atomic<bool> is_said{false};

// Why standard output cannot be written. The stream notes that a write failed and not why: it is
// asked for once more.
int cause_of_loss() {
  errno = 0;
  return ::write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
}

void write_error(std::string_view head, std::string_view text) noexcept {
  try {
    const std::string line = fmt::format("{}{}\n", head, shown_line(text));
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (...) {  // no memory for one line
  }
}

}  // namespace

void open_console() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // Opened the wrong way round: reading the input and writing the outputs fail.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) [[maybe_unused]]
      const int filled = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

bool is_output_lost() { return std::ferror(stdout) != 0; }

bool check_output(const std::string& consequence) {
  if (std::fflush(stdout) == 0 && !is_output_lost()) return true;
  const int cause = cause_of_loss();
  // A reader who has seen enough (| head) went away on purpose; what follows from it is said.
  if (cause == EPIPE && consequence.empty()) return false;
  if (!is_said.exchange(true))
    say_error(
        fmt::format("standard output cannot be written: {}{}", std::strerror(cause), consequence));
  return false;
}

void say_error(std::string_view text) noexcept { write_error("piper: ", text); }

void say_aside(std::string_view line) noexcept { write_error("", line); }

void internal::write_output(const std::string& text) { fmt::print("{}", shown_lines(text)); }

void say_json(const Json& json) { fmt::print("{}\n", shown_json(to_text(json, 2))); }

}  // namespace piper::cli
