// Interpolation of a measured curve. In each axis the coordinate falls into an interval of the grid
// at a share 0..1 of its logarithmic width; the result is the weighted geometric mean of the 2^axes
// corners, which is linear in log(rate) along every axis: a power law is reproduced exactly.
#include <piper/base/error.h>
#include <piper/cluster/cluster.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace piper::cluster {
namespace {

constexpr size_t kMaxAxes = 4;
constexpr double kPlateau = 0.1;  // see watch.h

struct Position {
  size_t index = 0;  // of the interval's lower point
  double share = 0;  // of the way to the next point; 0 at the last point
};

Position locate(const std::vector<double>& points, double coordinate, bool* outside) {
  const auto above = std::upper_bound(points.begin(), points.end(), coordinate);
  if (above == points.begin()) {
    *outside = true;
    return {0, 0};
  }
  const auto index = static_cast<size_t>(above - points.begin()) - 1;
  if (above == points.end()) {
    *outside = *outside || coordinate > points.back();
    return {index, 0};
  }
  return {index, std::log(coordinate / points[index]) / std::log(*above / points[index])};
}

bool ends_in_plateau(const Grid& grid) {
  if (grid.axes != std::vector<std::string>{"bytes"} || grid.rate.size() < 2) return false;
  const double last = grid.rate.back(), before = grid.rate[grid.rate.size() - 2];
  return std::abs(last - before) <= kPlateau * before;
}

// Fewer bytes than the first point, where even that point takes no time worth asking about.
bool begins_below_notice(const Grid& grid) {
  constexpr double kNegligibleSeconds = 1e-6;
  return grid.axes == std::vector<std::string>{"bytes"} &&
         grid.points[0].front() / grid.rate.front() < kNegligibleSeconds;
}

void note(const Grid& grid, const std::vector<double>& coordinates) {
  for (size_t axis = 0; axis < grid.points.size(); ++axis) {
    const std::vector<double>& points = grid.points[axis];
    if (coordinates[axis] > points.back() && ends_in_plateau(grid)) continue;
    if (coordinates[axis] < points.front() && begins_below_notice(grid)) continue;
    grid.watch->note(grid.watched_as, grid.axes[axis], coordinates[axis], points.front(),
                     points.back());
  }
}

}  // namespace

double Grid::at(const std::vector<double>& coordinates, bool* outside) const {
  PIPER_CHECK(!empty() && coordinates.size() == points.size() && points.size() <= kMaxAxes,
              "a curve was asked with the wrong number of coordinates");
  bool clamped = false;
  std::array<Position, kMaxAxes> positions;
  for (size_t axis = 0; axis < points.size(); ++axis)
    positions[axis] = locate(points[axis], coordinates[axis], &clamped);
  if (outside != nullptr) *outside = clamped;
  if (clamped && watch) note(*this, coordinates);

  double log_rate = 0;
  for (size_t corner = 0; corner < size_t{1} << points.size(); ++corner) {
    double weight = 1;
    size_t cell = 0;
    for (size_t axis = 0; axis < points.size(); ++axis) {
      const bool upper = corner >> axis & 1;
      weight *= upper ? positions[axis].share : 1 - positions[axis].share;
      cell = cell * points[axis].size() + positions[axis].index + (upper ? 1 : 0);
    }
    if (weight > 0) log_rate += weight * std::log(rate[cell]);
  }
  return std::exp(log_rate);
}

}  // namespace piper::cluster
