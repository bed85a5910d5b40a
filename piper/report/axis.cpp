#include <piper/base/error.h>
#include <piper/report/axis.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace piper::report {

double tick_step(double low, double high, int target) {
  PIPER_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high && target >= 1, "ticks");
  if (low == high) return 1;
  const double rough = (high - low) / target;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;  // in [1, 10)
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

std::vector<double> ticks(double low, double high, int target) {
  if (low == high) return {low};
  const double step = tick_step(low, high, target);
  std::vector<double> result;
  // Counted in whole steps: no rounding error adds up, and zero is zero.
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) result.push_back(static_cast<double>(i) * step);
  return result;
}

std::vector<double> log_ticks(double low, double high) {
  PIPER_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high, "ticks");
  constexpr double kMostForSteps = 3;  // decades
  constexpr double kTolerance = 1e-9;
  std::vector<double> result;
  for (double power = std::floor(low); power <= high; ++power)
    for (const double lead : {1.0, 2.0, 5.0}) {
      if (lead > 1 && high - low > kMostForSteps) continue;
      const double at = power + std::log10(lead);
      if (at >= low - kTolerance && at <= high + kTolerance) result.push_back(at);
    }
  return result;
}

std::vector<size_t> evenly_chosen(size_t count, size_t max_chosen) {
  PIPER_CHECK(max_chosen >= 2, "evenly_chosen");
  std::vector<size_t> indices;
  const size_t num_chosen = std::min(count, max_chosen);
  for (size_t i = 0; i < num_chosen; ++i) {
    indices.push_back(count <= max_chosen ? i : i * (count - 1) / (max_chosen - 1));
  }
  return indices;
}

}  // namespace piper::report
