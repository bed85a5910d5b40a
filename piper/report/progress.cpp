#include <fmt/format.h>
#include <piper/base/printable.h>
#include <piper/base/units.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace piper::report {
namespace {

constexpr int kBarCells = 20;
constexpr double kRedrawSeconds = 0.1;
constexpr double kUnknownTotalSeconds = 10;  // between two lines of a log when no total is known

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string bar(double share) {
  const int filled = static_cast<int>(share * kBarCells);
  return fmt::format("[{:#<{}}{:-<{}}]", "", filled, "", kBarCells - filled);
}

}  // namespace

std::string progress_line(const ProgressState& state, int width) {
  std::string line = state.label;
  const bool bounded = state.total > 0;
  const double share =
      bounded ? std::clamp(static_cast<double>(state.count) / state.total, 0.0, 1.0) : 0.0;
  // Rounded down: 100 % is said only when it is.
  if (bounded) line += fmt::format("  {} {:3} %", bar(share), static_cast<int>(share * 100));
  line +=
      bounded ? fmt::format("  {}/{}", state.count, state.total) : fmt::format("  {}", state.count);
  if (!state.unit.empty()) line += " " + state.unit;
  line += "  " + format_seconds(state.elapsed_seconds);
  // The first parts of most work are unlike the rest: nothing is promised before a third is done.
  constexpr double kLeastShare = 1.0 / 3;
  if (bounded && share >= kLeastShare && state.count < state.total) {
    line += ", " + format_seconds(state.elapsed_seconds * (1 - share) / share) + " left";
  }
  if (!state.note.empty()) line += "  " + state.note;
  line = shown_line(line);
  return width > 0 ? cut_to_width(line, width) : line;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.write) {
    options_.write = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    };
  }
  if (!options_.clock_seconds) options_.clock_seconds = steady_seconds;
  terminal_ = options_.is_terminal ? options_.is_terminal() : isatty(STDERR_FILENO) != 0;
  state_.label = options_.label;
  state_.total = options_.total;
  state_.unit = options_.unit;
  start_seconds_ = options_.clock_seconds();
  changed(false);
}

Progress::~Progress() { finish(); }

void Progress::advance(int64_t by) {
  const std::lock_guard lock(mutex_);
  state_.count += by;
  changed(false);
}

void Progress::set(int64_t count) {
  const std::lock_guard lock(mutex_);
  state_.count = count;
  changed(false);
}

void Progress::set(int64_t count, std::string note) {
  const std::lock_guard lock(mutex_);
  state_.count = count;
  state_.note = std::move(note);
  changed(false);
}

void Progress::note(std::string note) {
  const std::lock_guard lock(mutex_);
  state_.note = std::move(note);
  changed(false);
}

void Progress::print(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (drawn_) options_.write("\r\x1b[K");
  const std::string shown = shown_line(line) + "\n";
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
  if (drawn_) redraw(false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  changed(true);
  finished_ = true;
}

// Requires the lock (or the constructor).
void Progress::changed(bool last) {
  if (finished_) return;
  const double now = options_.clock_seconds();
  state_.elapsed_seconds = now - start_seconds_;
  if (!terminal_) return append(last);
  if (!last && drawn_ && now - drawn_seconds_ < kRedrawSeconds) return;
  drawn_seconds_ = now;
  redraw(last);
}

void Progress::redraw(bool last) {
  options_.write("\r\x1b[K" + progress_line(state_, terminal_width() - 1) + (last ? "\n" : ""));
  drawn_ = !last;
}

void Progress::append(bool last) {
  const int64_t tenth = state_.total > 0
                            ? state_.count * 10 / state_.total
                            : static_cast<int64_t>(state_.elapsed_seconds / kUnknownTotalSeconds);
  const bool complete = state_.total > 0 && shown_tenth_ >= 10;
  if (last ? complete : tenth <= shown_tenth_) return;
  shown_tenth_ = tenth;
  options_.write(progress_line(state_) + "\n");
}

}  // namespace piper::report
