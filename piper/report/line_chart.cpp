#include <fmt/format.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/line_chart.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::report {
namespace {

constexpr double kLineLeft = 74, kLineRight = 14, kLineTop = 12, kLineBottom = 42;
using Point = std::pair<double, double>;

bool finite(const Point& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

struct AxisBounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never empty, and with a little air around a curve.
  void widen(double share) {
    const double air = high > low ? (high - low) * share : std::max(std::abs(high), 1.0) * 0.5;
    low -= air;
    high += air;
  }
};

// The points of one pixel column, in the order of their x: first, extremes, last.
void keep_extremes(std::vector<Point>& kept, std::vector<Point>& column) {
  if (column.empty()) return;
  const auto by_y = [](const Point& a, const Point& b) { return a.second < b.second; };
  const auto [low, high] = std::minmax_element(column.begin(), column.end(), by_y);
  std::vector<size_t> indices = {0, static_cast<size_t>(low - column.begin()),
                                 static_cast<size_t>(high - column.begin()), column.size() - 1};
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  for (const size_t i : indices) kept.push_back(column[i]);
  column.clear();
}

std::vector<Point> thinned(const std::vector<Point>& pixels) {
  std::vector<Point> kept, column;
  for (const Point& p : pixels) {
    if (!column.empty() && std::floor(p.first) != std::floor(column.front().first)) {
      keep_extremes(kept, column);
    }
    column.push_back(p);
  }
  keep_extremes(kept, column);
  return kept;
}

void draw(Svg& svg, const Series& series, const Scale& x, const Scale& y) {
  std::vector<Point> run;
  const auto flush = [&] {
    if (run.size() == 1 || series.dots)
      for (const auto& [at_x, at_y] : run) svg.circle(at_x, at_y, 3, series.css_class + " dot");
    else if (run.size() > 1)
      svg.polyline(thinned(run), "curve " + series.css_class);
    run.clear();
  };
  for (const Point& point : series.points) {
    if (finite(point)) {
      run.emplace_back(x(point.first), y(point.second));
    } else {
      flush();
    }
  }
  flush();
}

// The value behind a place on an axis.
double original(double value, bool logarithmic) {
  return logarithmic ? std::pow(10.0, value) : value;
}

// The same series in the coordinates of the axes.
std::vector<Series> placed(const LineChart& chart) {
  std::vector<Series> all = chart.series;
  for (Series& series : all)
    for (Point& point : series.points) {
      if (chart.log_x) point.first = std::log10(point.first);
      if (chart.log_y) point.second = std::log10(point.second);
    }
  return all;
}

std::string shortest(double value) { return fmt::format("{:.6g}", value); }

void draw_axes(Svg& svg, const LineChart& chart, const Scale& x, const Scale& y) {
  const auto format_x = chart.format_x ? chart.format_x : shortest;
  const auto format_y = chart.format_y ? chart.format_y : shortest;
  for (const double value : chart.log_y ? log_ticks(y.low, y.high) : ticks(y.low, y.high, 6)) {
    svg.line(x.from, y(value), x.to, y(value), "grid");
    svg.text(x.from - 8, y(value) + 4, format_y(original(value, chart.log_y)), Anchor::kEnd,
             "tick");
  }
  for (const double value : chart.log_x ? log_ticks(x.low, x.high) : ticks(x.low, x.high, 10)) {
    svg.line(x(value), y.from, x(value), y.from + 4, "axis");
    svg.text(x(value), y.from + 17, format_x(original(value, chart.log_x)), Anchor::kMiddle,
             "tick");
  }
  svg.line(x.from, y.from, x.to, y.from, "axis");
  svg.text((x.from + x.to) / 2, y.from + 34, chart.x_label, Anchor::kMiddle, "label");
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  const std::vector<Series> all = placed(chart);
  AxisBounds x_bounds, y_bounds;
  for (const Series& series : all) {
    for (const Point& point : series.points) {
      if (!finite(point)) continue;
      x_bounds.add(point.first);
      y_bounds.add(point.second);
    }
  }
  if (x_bounds.low > x_bounds.high) return "";
  if (x_bounds.low == x_bounds.high) x_bounds.widen(0);
  y_bounds.widen(0.05);
  if (chart.from_zero) y_bounds.low = 0;
  const Scale x{x_bounds.low, x_bounds.high, kLineLeft, kChartWidth - kLineRight};
  const Scale y{y_bounds.low, y_bounds.high, chart.height - kLineBottom, kLineTop};

  Svg svg(kChartWidth, chart.height, chart.description);
  draw_axes(svg, chart, x, y);
  for (const Series& series : all) draw(svg, series, x, y);
  std::vector<LegendEntry> entries;
  for (const Series& series : chart.series) entries.push_back({series.css_class, series.name});
  const std::string title = chart.y_label.empty() ? "" : "<h3>" + escape(chart.y_label) + "</h3>\n";
  return title + (entries.size() > 1 ? legend(entries) : "") + svg.finish();
}

}  // namespace piper::report
