#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cluster/fit.h>

#include <cmath>
#include <random>

using namespace piper;
using namespace piper::cluster;

namespace {

// 512 B .. 512 MB, every power of two: what a network micro-benchmark measures.
std::vector<Sample> ladder(double alpha, double bytes_per_second) {
  std::vector<Sample> samples;
  for (double bytes = 512; bytes <= 512 * 1024 * 1024; bytes *= 2)
    samples.push_back({bytes, alpha + bytes / bytes_per_second});
  return samples;
}

}  // namespace

TEST_CASE("two samples determine the line by hand") {
  // T(0) = 2 s, T(10) = 7 s: alpha = 2 s, beta = 0.5 s/byte, so 2 bytes/s.
  const Fit fit = fit_alpha_beta({{0, 2}, {10, 7}});
  CHECK(fit.line.latency_seconds == doctest::Approx(2));
  CHECK(fit.line.bytes_per_second == doctest::Approx(2));
  CHECK(fit.line.seconds(4) == doctest::Approx(4));
  CHECK(fit.r_squared == doctest::Approx(1));
  CHECK(fit.worst_residual < 1e-9);
}

TEST_CASE("residuals are relative and signed: prediction over measurement") {
  const Fit fit = fit_alpha_beta({{1, 1}, {1, 3}, {2, 2}});
  REQUIRE(fit.residuals.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const double measured = i == 0 ? 1 : i == 1 ? 3 : 2;
    const double bytes = i == 2 ? 2 : 1;
    CHECK(fit.residuals[i] == doctest::Approx((fit.line.seconds(bytes) - measured) / measured));
  }
}

TEST_CASE("without a latency the line of least relative error passes through zero") {
  // (1, 1), (2, 4) rise faster than proportionally: the free line has alpha = -2. Through zero
  // beta is the mean of t / n = 1, 2 (errors relative to beta n count alike): 1.5 s/byte.
  const Fit fit = fit_alpha_beta({{1, 1}, {2, 4}});
  CHECK(fit.line.latency_seconds == 0);
  CHECK(1 / fit.line.bytes_per_second == doctest::Approx(1.5));
}

TEST_CASE("an exact ladder of sizes is recovered at both ends") {
  const Fit fit = fit_alpha_beta(ladder(12e-6, 315e9));
  CHECK(fit.line.latency_seconds == doctest::Approx(12e-6).epsilon(1e-9));
  CHECK(fit.line.bytes_per_second == doctest::Approx(315e9).epsilon(1e-9));
}

TEST_CASE("5 percent noise moves latency and bandwidth by less than 5 percent") {
  const uint32_t seed = 7;
  CAPTURE(seed);
  std::mt19937 generator(seed);
  std::normal_distribution<double> noise(0, 0.05);
  std::vector<Sample> samples = ladder(20e-6, 10e9);
  for (Sample& sample : samples) sample.seconds *= std::exp(noise(generator));
  const Fit fit = fit_alpha_beta(samples);
  CHECK(fit.line.latency_seconds == doctest::Approx(20e-6).epsilon(0.05));
  CHECK(fit.line.bytes_per_second == doctest::Approx(10e9).epsilon(0.05));
  CHECK(fit.r_squared > 0.99);
  CHECK(fit.median_residual < 0.06);
}

TEST_CASE("four hiccups of a hundredfold delay do not move the line by 10 percent") {
  std::vector<Sample> samples = ladder(20e-6, 10e9);
  for (const size_t i : {1, 8, 14, 20}) samples[i].seconds *= 100;
  const Fit fit = fit_alpha_beta(samples);
  CHECK(fit.line.latency_seconds == doctest::Approx(20e-6).epsilon(0.1));
  CHECK(fit.line.bytes_per_second == doctest::Approx(10e9).epsilon(0.1));
  CHECK(fit.median_residual < 0.1);
  CHECK(fit.worst_residual > 0.9);  // they stay visible
}

TEST_CASE("two samples a tenth as long as they should be do not move the line by 10 percent") {
  // Errors relative to the measurement would give these ten times the leverage of the others.
  std::vector<Sample> samples = ladder(20e-6, 10e9);
  for (const size_t i : {3, 18}) samples[i].seconds /= 10;
  const Fit fit = fit_alpha_beta(samples);
  CHECK(fit.line.latency_seconds == doctest::Approx(20e-6).epsilon(0.1));
  CHECK(fit.line.bytes_per_second == doctest::Approx(10e9).epsilon(0.1));
  CHECK(fit.worst_residual > 7);
}

TEST_CASE("small messages count as much as large ones") {
  // A fit of absolute errors would leave alpha to the 1 % error of the 1 s sample (10 ms).
  const Fit fit = fit_alpha_beta({{1e3, 11e-6}, {1e4, 20e-6}, {1e5, 110e-6}, {1e9, 1.01}});
  CHECK(fit.line.latency_seconds == doctest::Approx(10e-6).epsilon(0.02));
}

TEST_CASE("times that fall with size give the rate of the largest sample") {
  const Fit fit = fit_alpha_beta({{1000, 3}, {2000, 2}, {3000, 1}});
  CHECK(fit.line.bytes_per_second == doctest::Approx(3000));
  CHECK(fit.line.latency_seconds >= 0);
}

TEST_CASE("what is no measurement is refused") {
  CHECK_THROWS_AS(fit_alpha_beta({}), InternalError);
  CHECK_THROWS_AS(fit_alpha_beta({{1, 1}}), InternalError);
  CHECK_THROWS_AS(fit_alpha_beta({{1, 1}, {1, 2}}), InternalError);
  CHECK_THROWS_AS(fit_alpha_beta({{1, 1}, {2, 0}}), InternalError);
  CHECK_THROWS_AS(fit_alpha_beta({{1, 1}, {2, std::nan("")}}), InternalError);
}
