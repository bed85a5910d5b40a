#include <piper/profile/time_shares.h>

#include <algorithm>
#include <utility>

namespace piper::profile {

TimeShares::TimeShares(double budget_seconds, int64_t num_points, std::function<double()> clock)
    : clock_(std::move(clock)), end_(clock_() + budget_seconds), points_left_(num_points) {}

double TimeShares::next() {
  const int64_t among = std::max<int64_t>(points_left_--, 1);
  return std::max(0.0, end_ - clock_()) / static_cast<double>(among);
}

}  // namespace piper::profile
