#include <piper/base/error.h>
#include <piper/plan/split.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace piper::plan {
namespace {

struct Filled {
  bool fits = false;
  double heaviest = 0;  // stage: any limit from this one up to the one given fills alike
  double more = std::numeric_limits<double>::infinity();  // the least limit that fills otherwise
};

// Fills stages from the last to the first up to `limit`; does not fit when layers are left over.
Filled fill(const std::vector<double>& seconds, double first, double last,
            const std::vector<double>& slowness, double limit, std::vector<int64_t>& split) {
  Filled filled;
  int64_t left = static_cast<int64_t>(seconds.size());
  for (size_t stage = split.size(); stage-- > 0;) {
    const double slow = slowness.empty() ? 1 : slowness[stage];
    double load = stage + 1 == split.size() ? last * slow : 0;
    if (stage == 0) load += first * slow;
    split[stage] = 0;
    // One layer must stay for every stage before this one.
    while (left > static_cast<int64_t>(stage)) {
      const double with = load + slow * seconds[static_cast<size_t>(left - 1)];
      if (with > limit) {
        filled.more = std::min(filled.more, with);
        if (split[stage] > 0) break;
        return filled;
      }
      load = with;
      ++split[stage];
      --left;
    }
    filled.heaviest = std::max(filled.heaviest, load);
  }
  filled.fits = left == 0;
  return filled;
}

}  // namespace

std::vector<int64_t> balanced_split(const std::vector<double>& layer_seconds, double first,
                                    double last, int64_t pp, const std::vector<double>& slowness) {
  PIPER_CHECK(pp >= 1 && pp <= static_cast<int64_t>(layer_seconds.size()));
  PIPER_CHECK(slowness.empty() || static_cast<int64_t>(slowness.size()) == pp);
  double high = std::accumulate(layer_seconds.begin(), layer_seconds.end(), first + last);
  high *= (slowness.empty() ? 1 : std::ranges::max(slowness)) * (1 + 1e-9);
  double low = 0;
  std::vector<int64_t> split(static_cast<size_t>(pp)), best;
  constexpr int kSteps = 40;  // halvings: far below the precision of any price
  for (int i = 0; i <= kSteps && low < high; ++i) {
    const double limit = i == 0 ? high : (low + high) / 2;
    const Filled filled = fill(layer_seconds, first, last, slowness, limit, split);
    if (filled.fits) {
      best = split;
      high = filled.heaviest;
    } else {
      low = filled.more;
    }
  }
  return best;
}

}  // namespace piper::plan
