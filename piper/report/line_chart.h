// Curves over a common x axis: the loss over the steps, memory over time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace piper::report {

struct Series {
  std::string name;  // in the legend, when there are several series
  std::string css_class;
  std::vector<std::pair<double, double>>
      points;         // ascending in x; not finite values break the curve
  bool dots = false;  // each point by itself instead of a curve
};

struct LineChart {
  std::string description;
  std::string x_label, y_label;
  std::vector<Series> series;
  bool from_zero = false;             // the y axis starts at 0
  bool log_x = false, log_y = false;  // values that are not positive break the curve
  double height = 240;
  std::function<std::string(double)> format_x,
      format_y;  // of ticks; by default the shortest number
};

// "" when no series has a finite point. Long series are thinned to what a screen can show, keeping
// the smallest and the largest value of every pixel column.
std::string line_chart(const LineChart& chart);

}  // namespace piper::report
