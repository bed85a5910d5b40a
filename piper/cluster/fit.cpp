#include <piper/base/error.h>
#include <piper/base/median.h>
#include <piper/cluster/fit.h>

#include <algorithm>
#include <cmath>

namespace piper::cluster {
namespace {

// Samples whose relative error is below this many typical deviations keep their full weight
// (Huber's 1.345: 95 % efficient on normal noise).
constexpr double kHuber = 1.345;
constexpr int kMaxRounds = 60;
// Noise of a clock: deviations below it are never treated as outliers.
constexpr double kNoiseFloor = 1e-9;

struct Line {
  double alpha = 0;
  double beta = 0;
  double operator()(double bytes) const { return alpha + beta * bytes; }
};

// Theil-Sen: the median slope of all pairs, then the median intercept of the relative errors.
Line start_line(const std::vector<Sample>& samples) {
  std::vector<double> slopes;
  for (size_t i = 0; i < samples.size(); ++i)
    for (size_t j = i + 1; j < samples.size(); ++j)
      if (samples[i].bytes != samples[j].bytes)
        slopes.push_back((samples[j].seconds - samples[i].seconds) /
                         (samples[j].bytes - samples[i].bytes));
  PIPER_CHECK(!slopes.empty(), "a fit needs two samples of different size");
  Line line{.beta = median(slopes)};
  std::vector<double> intercepts;
  for (const Sample& sample : samples)
    intercepts.push_back(sample.seconds - line.beta * sample.bytes);
  line.alpha = std::max(0.0, median(intercepts));
  return line;
}

// What the errors are measured by: the prediction, which an outlier cannot shrink or blow up as it
// could its own time. Never much below the measurement (a message of 0 bytes without latency).
std::vector<double> predictions(const std::vector<Sample>& samples, const Line& line) {
  std::vector<double> seconds;
  for (const Sample& sample : samples)
    seconds.push_back(std::max(line(sample.bytes), 1e-3 * sample.seconds));
  return seconds;
}

std::vector<double> relative_errors(const std::vector<Sample>& samples,
                                    const std::vector<double>& predicted) {
  std::vector<double> errors;
  for (size_t i = 0; i < samples.size(); ++i)
    errors.push_back((predicted[i] - samples[i].seconds) / predicted[i]);
  return errors;
}

Line from_largest(const std::vector<Sample>& samples) {
  const Sample& largest =
      *std::max_element(samples.begin(), samples.end(),
                        [](const Sample& a, const Sample& b) { return a.bytes < b.bytes; });
  return {.alpha = 0, .beta = largest.seconds / largest.bytes};
}

// Minimises sum w ((alpha + beta n - t) / p)^2 over alpha >= 0, beta > 0, p being the last round's
// predictions: the normal equations with the regressors 1 / p, n / p and the target t / p.
Line weighted_line(const std::vector<Sample>& samples, const std::vector<double>& predicted,
                   const std::vector<double>& weights) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double u = 1 / predicted[i], v = samples[i].bytes / predicted[i];
    const double y = samples[i].seconds / predicted[i];
    aa += weights[i] * u * u;
    ab += weights[i] * u * v;
    bb += weights[i] * v * v;
    a += weights[i] * u * y;
    b += weights[i] * v * y;
  }
  const double determinant = aa * bb - ab * ab;
  const Line line{.alpha = (a * bb - b * ab) / determinant,
                  .beta = (b * aa - a * ab) / determinant};
  if (!(determinant > 0) || line.alpha < 0) return {.alpha = 0, .beta = b / bb};
  if (!(line.beta > 0)) return from_largest(samples);
  return line;
}

std::vector<double> huber_weights(const std::vector<double>& errors) {
  std::vector<double> sizes;
  for (const double error : errors) sizes.push_back(std::abs(error));
  const double scale = std::max(median(sizes) / 0.6745, kNoiseFloor);
  std::vector<double> weights;
  for (const double size : sizes)
    weights.push_back(size <= kHuber * scale ? 1 : kHuber * scale / size);
  return weights;
}

double r_squared(const std::vector<Sample>& samples, const std::vector<double>& predicted) {
  double weight = 0, mean = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    weight += 1 / (predicted[i] * predicted[i]);
    mean += samples[i].seconds / (predicted[i] * predicted[i]);
  }
  mean /= weight;
  double unexplained = 0, total = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    unexplained += std::pow((predicted[i] - samples[i].seconds) / predicted[i], 2);
    total += std::pow((mean - samples[i].seconds) / predicted[i], 2);
  }
  if (total == 0) return unexplained == 0 ? 1 : 0;
  return std::max(0.0, 1 - unexplained / total);
}

}  // namespace

Fit fit_alpha_beta(const std::vector<Sample>& samples) {
  PIPER_CHECK(samples.size() >= 2, "a fit needs two samples");
  for (const Sample& s : samples)
    PIPER_CHECK(std::isfinite(s.bytes) && s.bytes >= 0 && std::isfinite(s.seconds) && s.seconds > 0,
                "a sample of a fit is not a measurement");

  Line line = start_line(samples);
  for (int round = 0; round < kMaxRounds; ++round) {
    const std::vector<double> predicted = predictions(samples, line);
    const Line next =
        weighted_line(samples, predicted, huber_weights(relative_errors(samples, predicted)));
    const bool settled = std::abs(next.alpha - line.alpha) <= 1e-12 * std::abs(line.alpha) &&
                         std::abs(next.beta - line.beta) <= 1e-12 * std::abs(line.beta);
    line = next;
    if (settled) break;
  }

  Fit fit;
  fit.line = {.latency_seconds = line.alpha, .bytes_per_second = 1 / line.beta};
  std::vector<double> sizes;
  for (const Sample& s : samples) {
    fit.residuals.push_back((line(s.bytes) - s.seconds) / s.seconds);
    sizes.push_back(std::abs(fit.residuals.back()));
  }
  fit.median_residual = median(sizes);
  fit.worst_residual = *std::max_element(sizes.begin(), sizes.end());
  fit.r_squared = r_squared(samples, predictions(samples, line));
  return fit;
}

}  // namespace piper::cluster
