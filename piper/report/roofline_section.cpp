// The model's parts under the device's roofs, both axes logarithmic.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/plan_sections.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <cmath>

namespace piper::report {
namespace {

constexpr double kRoofHeight = 380, kRoofLeft = 100, kRoofRight = 20, kRoofTop = 14,
                 kRoofBottom = 44;
constexpr size_t kNumRoofColours = 10;

// Decades are equally wide.
struct LogScale {
  Scale decades;
  double operator()(double value) const { return decades(std::log10(value)); }
};

LogScale log_scale(double low, double high, double from, double to) {
  const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
  return {{first, std::max(last, first + 1), from, to}};
}

std::string css_class(size_t i) { return fmt::format("part-{}", i % kNumRoofColours); }

bool is_drawable(const RoofPoint& p) {
  return p.flops_per_byte > 0 && p.predicted_flops_per_second > 0 &&
         p.attainable_flops_per_second > 0;
}

class RoofChart {
 public:
  explicit RoofChart(const Roofs& roofs)
      : roofs_(roofs),
        svg_(kChartWidth, kRoofHeight, "Roofline of the model's parts on one device") {
    double left = ridge(roofs.peak_flops_per_second), right = left,
           low = roofs.peak_flops_per_second, high = low;
    for (const RoofPoint& p : roofs.points) {
      if (!is_drawable(p)) continue;
      left = std::min(left, p.flops_per_byte);
      right = std::max(right, p.flops_per_byte);
      low = std::min({low, p.predicted_flops_per_second, p.attainable_flops_per_second});
      high = std::max(high, p.peak_flops_per_second);
    }
    x_ = log_scale(left / 3, right * 3, kRoofLeft, kChartWidth - kRoofRight);
    y_ = log_scale(low / 2, high * 1.5, kRoofHeight - kRoofBottom, kRoofTop);
  }

  std::string draw() {
    axes();
    std::vector<double> drawn;
    roof(roofs_.peak_flops_per_second, drawn);
    for (const RoofPoint& p : roofs_.points) roof(p.peak_flops_per_second, drawn);
    for (size_t i = 0; i < roofs_.points.size(); ++i) point(i);
    return svg_.finish();
  }

 private:
  double ridge(double peak) const { return peak / roofs_.memory_bytes_per_second; }

  void axes() {
    for (double d = y_.decades.low; d <= y_.decades.high; ++d) {
      const double at = std::pow(10.0, d);
      svg_.line(x_.decades.from, y_(at), x_.decades.to, y_(at), "grid");
      svg_.text(x_.decades.from - 8, y_(at) + 4, format_flops_per_second(at), Anchor::kEnd, "tick");
    }
    for (double d = x_.decades.low; d <= x_.decades.high; ++d) {
      const double at = std::pow(10.0, d);
      svg_.line(x_(at), kRoofTop, x_(at), y_.decades.from, "grid");
      svg_.text(x_(at), y_.decades.from + 17, fmt::format("{:g}", at), Anchor::kMiddle, "tick");
    }
    svg_.text((kRoofLeft + kChartWidth - kRoofRight) / 2, kRoofHeight - 8,
              "FLOPs a byte of memory traffic", Anchor::kMiddle, "label");
  }

  // The slope of the memory up to the ridge, then the peak; a peak that is drawn already is not
  // drawn again.
  void roof(double peak, std::vector<double>& drawn) {
    if (peak <= 0 || std::ranges::find(drawn, peak) != drawn.end()) return;
    drawn.push_back(peak);
    const double bottom = std::pow(10.0, y_.decades.low), left = std::pow(10.0, x_.decades.low);
    const double start = std::max(left, ridge(bottom));
    svg_.polyline({{x_(start), y_(start * roofs_.memory_bytes_per_second)},
                   {x_(ridge(peak)), y_(peak)},
                   {x_.decades.to, y_(peak)}},
                  "roof");
    svg_.text(x_.decades.to - 4, y_(peak) - 6, format_flops_per_second(peak), Anchor::kEnd,
              "tick strong");
  }

  void point(size_t i) {
    const RoofPoint& p = roofs_.points[i];
    if (!is_drawable(p)) return;
    const double x = x_(p.flops_per_byte);
    svg_.circle(x, y_(p.attainable_flops_per_second), 6, css_class(i) + " open",
                fmt::format("{}: the roof allows {}", p.part,
                            format_flops_per_second(p.attainable_flops_per_second)));
    svg_.circle(
        x, y_(p.predicted_flops_per_second), 6, css_class(i),
        fmt::format("{}: predicted {} at {:.3g} FLOPs a byte", p.part,
                    format_flops_per_second(p.predicted_flops_per_second), p.flops_per_byte));
  }

  const Roofs& roofs_;
  LogScale x_, y_;
  Svg svg_;
};

std::string table(const Roofs& roofs) {
  HtmlTable table{.columns = {{"part"},
                              {"layers", Align::kRight},
                              {"FLOPs a byte", Align::kRight},
                              {"bound by"},
                              {"the roof allows", Align::kRight},
                              {"predicted", Align::kRight},
                              {"of its roof", Align::kRight}}};
  for (const RoofPoint& p : roofs.points)
    table.rows.push_back({.cells = {{p.part, "strong"},
                                    {p.num_layers > 0 ? std::to_string(p.num_layers) : "–"},
                                    {fmt::format("{:.3g}", p.flops_per_byte)},
                                    {p.bound},
                                    {format_flops_per_second(p.attainable_flops_per_second)},
                                    {format_flops_per_second(p.predicted_flops_per_second)},
                                    {p.attainable_flops_per_second > 0
                                         ? format_percent(p.predicted_flops_per_second /
                                                          p.attainable_flops_per_second)
                                         : "–"}}});
  return to_html(table);
}

}  // namespace

std::string roofline_section(const PlanDocument& plan) {
  if (!plan.roofs || plan.roofs->peak_flops_per_second <= 0 ||
      plan.roofs->memory_bytes_per_second <= 0)
    return absent("This document keeps no roofline: piper plan on GPU clusters writes it.");
  const Roofs& roofs = *plan.roofs;
  std::vector<LegendEntry> parts;
  for (size_t i = 0; i < roofs.points.size(); ++i)
    parts.push_back({css_class(i), roofs.points[i].part});
  return paragraph(fmt::format(
             "Forward of one micro-batch on one rank of the best strategy. Peak {}, memory {}: "
             "parts left of {:.0f} "
             "FLOPs a byte are bound by memory. Filled: predicted; open: what the roof allows.",
             format_flops_per_second(roofs.peak_flops_per_second),
             format_bytes_per_second(roofs.memory_bytes_per_second),
             roofs.peak_flops_per_second / roofs.memory_bytes_per_second)) +
         legend(parts) + RoofChart(roofs).draw() + table(roofs);
}

}  // namespace piper::report
