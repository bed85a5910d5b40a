// The Pareto front of speed and memory as a scatter plot.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/plan_sections.h>
#include <piper/report/svg.h>

#include <algorithm>

namespace piper::report {
namespace {

constexpr double kFrontHeight = 320, kFrontLeft = 74, kFrontRight = 20, kFrontTop = 14,
                 kFrontBottom = 44;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// A little air beyond the data.
Scale scale(double low, double high, double from, double to) {
  const double air = high > low ? 0.06 * (high - low) : std::max(0.1 * high, 1e-9);
  return {std::max(0.0, low - air), high + air, from, to};
}

std::string chart(const PlanDocument& plan) {
  const auto by_memory = [](const FrontPoint& a, const FrontPoint& b) {
    return a.peak_bytes < b.peak_bytes;
  };
  const auto by_mfu = [](const FrontPoint& a, const FrontPoint& b) { return a.mfu < b.mfu; };
  const auto [small, large] = std::ranges::minmax(plan.front, by_memory);
  const auto [slow, fast] = std::ranges::minmax(plan.front, by_mfu);
  const double high = std::max(large.peak_bytes, plan.memory_limit_bytes.value_or(0));
  const Scale x =
      scale(small.peak_bytes / kGiB, high / kGiB, kFrontLeft, kChartWidth - kFrontRight);
  const Scale y = scale(slow.mfu, fast.mfu, kFrontHeight - kFrontBottom, kFrontTop);
  Svg svg(kChartWidth, kFrontHeight,
          "MFU against peak memory of the strategies on the Pareto front");
  for (const double at : ticks(y.low, y.high, 6)) {
    svg.line(x.from, y(at), x.to, y(at), "grid");
    svg.text(x.from - 8, y(at) + 4, format_percent(at), Anchor::kEnd, "tick");
  }
  for (const double at : ticks(x.low, x.high, 10)) {
    svg.line(x(at), y.from, x(at), y.from + 4, "axis");
    svg.text(x(at), y.from + 17, fmt::format("{:.4g} GiB", at), Anchor::kMiddle, "tick");
  }
  svg.line(x.from, y.from, x.to, y.from, "axis");
  svg.text((x.from + x.to) / 2, y.from + 36, "peak memory of a device", Anchor::kMiddle, "label");
  if (plan.memory_limit_bytes)
    svg.line(x(*plan.memory_limit_bytes / kGiB), kFrontTop, x(*plan.memory_limit_bytes / kGiB),
             y.from, "limit", "usable memory " + format_bytes(*plan.memory_limit_bytes));
  for (const FrontPoint& p : plan.front)
    svg.circle(x(p.peak_bytes / kGiB), y(p.mfu), p.mfu == fast.mfu ? 7 : 4.5,
               p.mfu == fast.mfu ? "part-1" : "part-0",
               fmt::format("{}\n{} MFU, {}, {}", p.strategy, format_percent(p.mfu),
                           format_seconds(p.step_seconds), format_bytes(p.peak_bytes)));
  return svg.finish();
}

}  // namespace

std::string front_section(const PlanDocument& plan) {
  if (plan.front.empty()) return absent("This document keeps no front: piper plan --json does.");
  std::vector<LegendEntry> marks = {{"part-1", "the fastest"},
                                    {"part-0", "no other is both faster and smaller"}};
  if (plan.memory_limit_bytes) marks.push_back({"limit", "usable memory of a device"});
  HtmlTable table{.columns = {{"MFU", Align::kRight},
                              {"step time", Align::kRight},
                              {"peak memory", Align::kRight},
                              {"strategy"}}};
  for (const FrontPoint& p : plan.front)
    table.rows.push_back({.cells = {{format_percent(p.mfu)},
                                    {format_seconds(p.step_seconds)},
                                    {format_bytes(p.peak_bytes)},
                                    {p.strategy}}});
  return "<h3>MFU over memory</h3>\n" + legend(marks) + chart(plan) +
         fmt::format("<details><summary>{} points as a table</summary>\n{}</details>\n",
                     plan.front.size(), to_html(table));
}

}  // namespace piper::report
