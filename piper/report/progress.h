// A progress bar for long work, on standard error.
//
//   train  [########------------]   40 %  80/200 steps  12.3 s, 18.4 s left  loss 2.31
//
// On a terminal the line is redrawn in place, at most ten times a second, and at the end stays.
// Elsewhere (a log file) a plain line appears at the start of work that lasts, about every 10 %,
// and at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace piper::report {

// What a bar shows at one moment.
struct ProgressState {
  std::string label;
  int64_t count = 0;
  int64_t total = 0;  // 0 = unknown: no bar and no time left
  std::string unit;   // "steps"; may be empty
  std::string note;   // free text at the end of the line ("loss 2.31"); may be empty
  double elapsed_seconds = 0;
};

// The line without line ends, cut to `width` columns (0 = as long as it is). The time left assumes
// that the rest goes as fast as the work so far, of which a third has to be done.
std::string progress_line(const ProgressState& state, int width = 0);

struct ProgressOptions {
  std::string label;
  int64_t total = 0;
  std::string unit;
  // For tests and embedding; the defaults are standard error, whether it is a terminal, and a
  // steady clock.
  std::function<void(std::string_view)> write;
  std::function<bool()> is_terminal;
  std::function<double()> clock_seconds;
};

// All members are thread-safe: ranks may count on one bar together.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t by = 1);
  // Jumps to `count`; counts beyond the total are shown as they are.
  void set(int64_t count);
  void set(int64_t count, std::string note);
  void note(std::string note);
  // Writes one line of text to standard output (a step's metrics) without tearing the bar.
  void print(std::string_view line);
  // Draws the last state and ends the line. What comes afterwards is ignored; safe to call twice.
  void finish();

 private:
  void changed(bool last);
  void redraw(bool last);
  void append(bool last);

  ProgressOptions options_;
  std::mutex mutex_;
  ProgressState state_;
  bool terminal_ = false;
  bool finished_ = false;
  bool drawn_ = false;  // the bar stands on the terminal's current line
  double start_seconds_ = 0;
  double drawn_seconds_ = -1;
  int64_t shown_tenth_ = -1;  // of the total, when not a terminal
};

}  // namespace piper::report
