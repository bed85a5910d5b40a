#include <piper/base/error.h>
#include <piper/cluster/timing.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::cluster {
namespace {

constexpr int64_t kFewestForInterval = 6;  // 1 - 2 / 2^6 = 96.9 %
constexpr int64_t kMostExact = 200;        // samples; above, the normal approximation
constexpr double kTail = 0.025, kNormalQuantile = 1.959964;
constexpr double kFence = 3, kLeastOutlier = 1.1;

// The largest k with P(Binomial(n, 1/2) < k) <= 2.5 %; 0 when there is none.
int64_t rank_of_interval(int64_t n) {
  if (n > kMostExact) {
    const auto size = static_cast<double>(n);
    return static_cast<int64_t>(std::floor((size - kNormalQuantile * std::sqrt(size)) / 2));
  }
  double probability = std::pow(0.5, static_cast<double>(n)), below = 0;
  for (int64_t k = 0; k <= n; ++k) {
    below += probability;
    if (below > kTail) return k;
    probability *= static_cast<double>(n - k) / static_cast<double>(k + 1);
  }
  return 0;
}

double median_of_sorted(const std::vector<double>& sorted) {
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

}  // namespace

double Timing::half_width() const {
  if (num_samples < kFewestForInterval || !(seconds > 0))
    return std::numeric_limits<double>::infinity();
  return std::max(high_seconds - seconds, seconds - low_seconds) / seconds;
}

Timing summarise(std::vector<double> seconds) {
  PIPER_CHECK(!seconds.empty(), "a timing needs a sample");
  std::ranges::sort(seconds);
  const auto n = std::ssize(seconds);
  const auto k = static_cast<size_t>(std::max<int64_t>(rank_of_interval(n), 1));
  Timing timing{.seconds = median_of_sorted(seconds),
                .low_seconds = seconds[k - 1],
                .high_seconds = seconds[seconds.size() - k],
                .worst_seconds = seconds.back(),
                .num_samples = n};
  const double q1 = seconds[seconds.size() / 4], q3 = seconds[(3 * seconds.size()) / 4];
  const double fence = std::max(q3 + kFence * (q3 - q1), kLeastOutlier * timing.seconds);
  timing.num_outliers = seconds.end() - std::ranges::upper_bound(seconds, fence);
  return timing;
}

bool Sampler::done(double spent_seconds) {
  const auto n = std::ssize(samples_);
  if (n < rule_.min_samples) return false;
  if (n >= rule_.max_samples || spent_seconds >= rule_.budget_seconds) return true;
  if (n < next_look_) return false;
  next_look_ = n + std::max<int64_t>(n / 4, 1);
  return summarise(samples_).half_width() <= rule_.tight;
}

}  // namespace piper::cluster
