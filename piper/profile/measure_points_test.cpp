#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/executor/clock.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/measure_points.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace piper;
using namespace piper::profile;

namespace {

Prepare sleeping(double seconds, std::atomic<int>* calls = nullptr) {
  return [=] {
    return [=] {
      if (calls != nullptr) ++*calls;
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    };
  };
}

Measuring with(TimeShares& shares, int64_t ranks = 3) {
  return {.num_ranks = ranks, .num_cores = 2, .shares = &shares};
}

}  // namespace

TEST_CASE("every point gets the samples of all ranks, at least three each") {
  TimeShares shares(0, 2, executor::now_seconds);  // no time: the fewest
  const BenchCurve curve{
      "sleep", "bytes", {"x"}, {{{1}, 10, sleeping(1e-4)}, {{2}, 20, sleeping(1e-4)}}};
  std::atomic<int> reported = 0;
  Measuring how = with(shares);
  how.after_point = [&](const std::string& name) { reported += name == "sleep"; };
  const cluster::Curve measured = measure(curve, how);
  REQUIRE(measured.points.size() == 2);
  CHECK(reported == 2);
  for (const cluster::CurvePoint& point : measured.points) {
    CHECK(point.timing.num_samples == 9);
    CHECK(point.timing.seconds >= 1e-4);
  }
  CHECK(measured.points[1].at == std::vector<double>{2});
  CHECK(measured.points[1].amount == 20);
}

TEST_CASE(
    "a point that its share cannot hold is left out where the curve may skip, and measured where "
    "not") {
  for (const bool may_skip : {false, true}) {
    TimeShares shares(0.004, 2, executor::now_seconds);
    std::atomic<int> calls = 0;
    const BenchCurve curve{"sleep",
                           "bytes",
                           {"x"},
                           {{{1}, 1, sleeping(1e-4)}, {{2}, 1000, sleeping(1e-3, &calls)}},
                           may_skip};
    CHECK(measure(curve, with(shares)).points.size() == (may_skip ? 1 : 2));
    CHECK((calls == 0) == may_skip);
  }
}

TEST_CASE("points of the journal are taken over without a call, new ones are added to it") {
  const auto path =
      std::filesystem::temp_directory_path() / ("piper_points_" + std::to_string(getpid()));
  std::filesystem::remove(path);
  const Json machine{{"device", "x"}};
  std::atomic<int> first = 0, second = 0;
  const BenchCurve curve{"sleep",
                         "bytes",
                         {"x"},
                         {{{1}, 10, sleeping(1e-5, &first)}, {{2}, 20, sleeping(1e-5, &second)}}};
  {
    ProfileJournal journal(path, machine);
    journal.add(
        "sleep", {1},
        {.seconds = 7, .low_seconds = 7, .high_seconds = 7, .worst_seconds = 7, .num_samples = 9});
    TimeShares shares(0, 2, executor::now_seconds);
    Measuring how = with(shares, 1);
    how.journal = &journal;
    const cluster::Curve measured = measure(curve, how);
    REQUIRE(measured.points.size() == 2);
    CHECK(measured.points[0].timing.seconds == 7);
  }
  CHECK(first == 0);
  CHECK(second > 0);
  CHECK(ProfileJournal(path, machine).num_restored() == 2);
  std::filesystem::remove(path);
}

TEST_CASE("what one rank throws ends the curve on all of them") {
  for (const bool while_preparing : {true, false}) {
    std::atomic<int> prepared = 0;
    const auto fails = [&]() -> std::function<void()> {
      const bool mine = ++prepared == 2;
      if (mine && while_preparing) throw InvalidInput("no");
      return [=] {
        if (mine) throw InvalidInput("no");
      };
    };
    TimeShares shares(0.1, 2, executor::now_seconds);
    const BenchCurve curve{"fails", "bytes", {"x"}, {{{1}, 1, fails}, {{2}, 1, fails}}};
    CHECK_THROWS_AS(measure(curve, with(shares)), InvalidInput);
  }
}
