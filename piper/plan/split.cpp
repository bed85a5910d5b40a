#include <piper/base/error.h>
#include <piper/plan/split.h>

#include <algorithm>
#include <numeric>

namespace piper::plan {
namespace {

// Fills stages from the last to the first up to `limit`; false when layers are left over.
bool fill(const std::vector<double>& seconds, double first, double last, double limit,
          std::vector<int64_t>& split) {
  int64_t left = static_cast<int64_t>(seconds.size());
  for (size_t stage = split.size(); stage-- > 0;) {
    double load = stage + 1 == split.size() ? last : 0;
    if (stage == 0) load += first;
    split[stage] = 0;
    // One layer must stay for every stage before this one.
    while (left > static_cast<int64_t>(stage)) {
      load += seconds[static_cast<size_t>(left - 1)];
      if (load > limit && split[stage] > 0) break;
      if (load > limit) return false;
      ++split[stage];
      --left;
    }
  }
  return left == 0;
}

}  // namespace

std::vector<int64_t> balanced_split(const std::vector<double>& layer_seconds, double first,
                                    double last, int64_t pp) {
  PIPER_CHECK(pp >= 1 && pp <= static_cast<int64_t>(layer_seconds.size()));
  double high = std::accumulate(layer_seconds.begin(), layer_seconds.end(), first + last);
  high *= 1 + 1e-9;
  double low = 0;
  std::vector<int64_t> split(static_cast<size_t>(pp)), best;
  constexpr int kSteps = 40;  // halvings: far below the precision of any price
  for (int i = 0; i <= kSteps; ++i) {
    const double limit = i == 0 ? high : (low + high) / 2;
    if (fill(layer_seconds, first, last, limit, split)) {
      best = split;
      high = limit;
    } else {
      low = limit;
    }
  }
  return best;
}

}  // namespace piper::plan
