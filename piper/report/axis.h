// Scales and ticks of the charts.
#pragma once

#include <cstddef>
#include <vector>

namespace piper::report {

// Maps [low, high] of the data linearly to [from, to] of the picture (from > to turns the axis
// round).
struct Scale {
  double low = 0, high = 1;
  double from = 0, to = 1;
  double operator()(double value) const {
    return high > low ? from + (value - low) / (high - low) * (to - from) : from;
  }
};

// Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], about `target` of them,
// ascending. Requires finite bounds, target >= 1. Equal bounds give that one value.
std::vector<double> ticks(double low, double high, int target);

// The logarithms (base 10) of round numbers between 10^low and 10^high: powers of ten, and twice
// and five times them when there are few; ascending. Requires finite bounds.
std::vector<double> log_ticks(double low, double high);

// The distance between two neighbours of ticks().
double tick_step(double low, double high, int target);

// At most `max_chosen` of the indices 0 .. count-1, ascending: all when they are few, else evenly
// chosen with both ends. Requires max_chosen >= 2.
std::vector<size_t> evenly_chosen(size_t count, size_t max_chosen);

}  // namespace piper::report
