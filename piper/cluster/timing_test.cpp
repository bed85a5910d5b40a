#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/timing.h>

#include <cmath>
#include <numeric>
#include <random>

using namespace piper;
using namespace piper::cluster;

namespace {

std::vector<double> ascending(int n) {
  std::vector<double> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

// A clock and a thing to measure: every sample advances the clock by what it took and by `between`.
struct FakeClock {
  double now = 0, between = 0;
  template <class Next>
  std::vector<double> sample(const SamplingRule& rule, const Next& next) {
    Sampler sampler(rule);
    while (!sampler.done(now)) {
      const double seconds = next();
      now += seconds + between;
      sampler.add(seconds);
    }
    return sampler.samples();
  }
};

}  // namespace

TEST_CASE("the interval of the median is that of the order statistics") {
  // P(Bin(6, 1/2) < 1) = 1/64 <= 2.5 % < P(Bin(6, 1/2) < 2) = 7/64: smallest to largest.
  Timing t = summarise(ascending(6));
  CHECK(t.seconds == 3.5);
  CHECK(t.low_seconds == 1);
  CHECK(t.high_seconds == 6);
  // n = 15: P(< 4) = 576/32768 = 1.76 %, P(< 5) = 5.9 %: the 4th and the 12th.
  t = summarise(ascending(15));
  CHECK(t.low_seconds == 4);
  CHECK(t.high_seconds == 12);
  CHECK(t.half_width() == doctest::Approx(0.5));
  // n = 1000, normal: (1000 - 1.96 sqrt(1000)) / 2 = 469.01.
  t = summarise(ascending(1000));
  CHECK(t.low_seconds == 469);
  CHECK(t.high_seconds == 1000 - 469 + 1);
}

TEST_CASE("fewer than six samples have no interval, and say so") {
  CHECK(std::isinf(summarise({1, 1, 1, 1, 1}).half_width()));
  CHECK(summarise({1, 1, 1, 1, 1, 1}).half_width() == 0);
  CHECK_THROWS_AS(summarise({}), InternalError);
}

TEST_CASE("the interval covers the true median in about 95 of 100 cases") {
  std::mt19937 random(7);
  std::lognormal_distribution<double> noise(0, 0.3);  // median 1
  int covered = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> samples(31);
    for (double& s : samples) s = noise(random);
    const Timing t = summarise(samples);
    covered += t.low_seconds <= 1 && 1 <= t.high_seconds;
  }
  CHECK(covered > 1880);  // 95 % and a little: the order statistics are discrete
  CHECK(covered < 1980);
}

TEST_CASE("outliers are counted and the worst is kept, and neither leaves the samples") {
  std::vector<double> samples(40, 1.0);
  samples[3] =
      1.05;  // less than 10 % above: jitter of the clock, however small the quartiles' distance
  samples[10] = 5;
  samples[11] = 9;
  const Timing t = summarise(samples);
  CHECK(t.num_samples == 40);
  CHECK(t.num_outliers == 2);
  CHECK(t.worst_seconds == 9);
  CHECK(t.seconds == 1);
}

TEST_CASE("a steady point stops as soon as there is an interval, long before its budget") {
  FakeClock clock;
  const auto samples = clock.sample({.budget_seconds = 100}, [] { return 0.25; });
  CHECK(samples.size() == 6);
  CHECK(clock.now == doctest::Approx(1.5));
}

TEST_CASE("a noisy point goes on until its interval is tight") {
  FakeClock clock;
  int i = 0;
  // 0.9 and 1.1 in turn: the interval spans both for ever; 10 % is accepted, 2 % never comes.
  const auto next = [&] { return i++ % 2 == 0 ? 0.9 : 1.1; };
  CHECK(clock.sample({.tight = 0.11, .budget_seconds = 1000}, next).size() == 6);
  clock.now = 0;
  const auto all = clock.sample({.tight = 0.02, .budget_seconds = 1000, .max_samples = 77}, next);
  CHECK(all.size() == 77);
}

TEST_CASE(
    "a point that is not tight stops when its budget is spent, what lies between the samples "
    "counted") {
  FakeClock clock{.between = 0.5};
  int i = 0;
  const auto samples = clock.sample({.budget_seconds = 20}, [&] { return i++ % 2 ? 0.4 : 0.6; });
  CHECK(samples.size() == 20);
  // Slower than its whole budget: the fewest samples all the same.
  FakeClock slow;
  CHECK(slow.sample({.budget_seconds = 1, .min_samples = 3}, [] { return 10.0; }).size() == 3);
}
