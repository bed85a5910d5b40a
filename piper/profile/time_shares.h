// How a budget is divided among points that need unlike amounts of it: each point may use an equal
// part of what is left, so what a point with a tight median leaves over goes to the later ones, and
// what a slow one overdraws is taken from them.
#pragma once

#include <cstdint>
#include <functional>

namespace piper::profile {

class TimeShares {
 public:
  // `clock` in seconds; the budget runs from now.
  TimeShares(double budget_seconds, int64_t num_points, std::function<double()> clock);
  // The next point's part, in seconds; 0 when nothing is left.
  double next();
  // A point that needs no time (it was measured before).
  void skip() { --points_left_; }

 private:
  std::function<double()> clock_;
  double end_;
  int64_t points_left_;
};

}  // namespace piper::profile
