#include <doctest/doctest.h>
#include <piper/report/progress.h>

#include <algorithm>
#include <thread>
#include <vector>

using namespace piper::report;

namespace {

struct Screen {
  std::string text;
  double now = 100;
  ProgressOptions options(bool terminal, int64_t total) {
    return {.label = "train",
            .total = total,
            .unit = "steps",
            .write = [this](std::string_view t) { text += t; },
            .is_terminal = [terminal] { return terminal; },
            .clock_seconds = [this] { return now; }};
  }
  int64_t count(char c) const { return std::count(text.begin(), text.end(), c); }
};

}  // namespace

TEST_CASE("a line shows the share, the count, the time and the time left") {
  const ProgressState state{.label = "train",
                            .count = 80,
                            .total = 200,
                            .unit = "steps",
                            .note = "loss 2.31",
                            .elapsed_seconds = 12};
  // 12 s for 80 steps: 120 more take 18 s.
  CHECK(progress_line(state) ==
        "train  [########------------]  40 %  80/200 steps  12.00 s, 18.00 s left  loss 2.31");
  CHECK(progress_line(state, 10) == "train  [#…");
}

TEST_CASE("no time is promised before a third is done") {
  const auto at = [](int64_t count) {
    return progress_line({.label = "x", .count = count, .total = 9, .elapsed_seconds = 6});
  };
  for (const int64_t early : {1, 2}) CHECK(at(early).find("left") == std::string::npos);
  CHECK(at(3).ends_with("6.00 s, 12.00 s left"));
}

TEST_CASE("nothing is predicted before the first step, after the last, or without a total") {
  CHECK(progress_line({.label = "x", .count = 0, .total = 3, .elapsed_seconds = 1}) ==
        "x  [--------------------]   0 %  0/3  1.00 s");
  CHECK(progress_line({.label = "x", .count = 3, .total = 3, .elapsed_seconds = 1}) ==
        "x  [####################] 100 %  3/3  1.00 s");
  CHECK(progress_line({.label = "x", .count = 7, .elapsed_seconds = 1}) == "x  7  1.00 s");
}

TEST_CASE("in a log file a line appears about every tenth, and at the end once") {
  Screen screen;
  {
    Progress progress(screen.options(false, 1000));
    for (int i = 0; i < 1000; ++i) progress.advance();
  }
  CHECK(screen.count('\n') == 11);
  CHECK(screen.count('\r') == 0);
  CHECK(screen.text.find(" 1000/1000 steps") != std::string::npos);
}

TEST_CASE("work that stops early says where it stopped") {
  Screen screen;
  {
    Progress progress(screen.options(false, 100));
    progress.set(37, "interrupted");
  }
  CHECK(screen.text.rfind(" 37 %  37/100 steps  0 s, 0 s left  interrupted\n") !=
        std::string::npos);
}

TEST_CASE("a terminal is redrawn in place, ten times a second, and the last state stays") {
  Screen screen;
  {
    Progress progress(screen.options(true, 1000));
    for (int i = 0; i < 1000; ++i) {
      screen.now += 0.001;
      progress.advance();
    }
    progress.finish();
    progress.advance();  // ignored
  }
  CHECK(screen.count('\n') == 1);
  CHECK(screen.text.back() == '\n');
  CHECK(screen.count('\r') >= 10);
  CHECK(screen.count('\r') <= 12);
  CHECK(screen.text.find("1000/1000 steps") != std::string::npos);
  CHECK(screen.text.find("1001/1000") == std::string::npos);
}

TEST_CASE("threads count on one bar together") {
  Screen screen;
  Progress progress(screen.options(false, 7000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 7; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) progress.advance();
    });
  }
  for (auto& thread : threads) thread.join();
  progress.finish();
  CHECK(screen.text.find(" 7000/7000 steps") != std::string::npos);
}
