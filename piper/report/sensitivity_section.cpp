// A tornado: the MFU with each input changed, the widest bar first.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/plan_sections.h>
#include <piper/report/svg.h>

#include <algorithm>
#include <cmath>

namespace piper::report {
namespace {

constexpr double kSwingLeft = 310, kSwingRight = 40, kSwingBar = 18, kSwingRow = 28, kSwingTop = 8;
// Less than this moves nothing that a reader would see: a hundredth of a percent of MFU.
constexpr double kVisible = 1e-4;

bool is_visible(const InputSwing& s, double base) {
  return std::abs(s.low_mfu - base) >= kVisible || std::abs(s.high_mfu - base) >= kVisible;
}

// From the base to the MFU with the input changed; what lowers MFU and what raises it differ in
// colour.
void half(Svg& svg, const Scale& x, double base, double mfu, double y, const std::string& title) {
  if (mfu == base) return;
  const double from = x(std::min(base, mfu)), to = x(std::max(base, mfu));
  svg.rect(
      from, y, to - from, kSwingBar, mfu > base ? "gain" : "loss",
      fmt::format("{}: {} MFU ({:+.2f} points)", title, format_percent(mfu), 100 * (mfu - base)));
}

std::string chart(const std::vector<InputSwing>& swings, double base, double change) {
  double low = base, high = base;
  for (const InputSwing& s : swings) {
    low = std::min({low, s.low_mfu, s.high_mfu});
    high = std::max({high, s.low_mfu, s.high_mfu});
  }
  const double air = 0.04 * std::max(high - low, 1e-6);
  const Scale x{low - air, high + air, kSwingLeft, kChartWidth - kSwingRight};
  const double bottom = kSwingTop + kSwingRow * static_cast<double>(swings.size());
  Svg svg(kChartWidth, bottom + 30, "MFU with each input changed alone, the widest swing first");
  for (const double at : ticks(x.low, x.high, 8)) {
    svg.line(x(at), kSwingTop, x(at), bottom, "grid");
    svg.text(x(at), bottom + 16, format_percent(at), Anchor::kMiddle, "tick");
  }
  const int percent = static_cast<int>(std::lround(100 * change));
  for (size_t i = 0; i < swings.size(); ++i) {
    const InputSwing& s = swings[i];
    const double y = kSwingTop + kSwingRow * static_cast<double>(i);
    svg.text(kSwingLeft - 10, y + kSwingBar - 5, fmt::format("{} ({})", s.input, s.value),
             Anchor::kEnd, "label");
    half(svg, x, base, s.low_mfu, y, fmt::format("{} -{} %", s.input, percent));
    half(svg, x, base, s.high_mfu, y, fmt::format("{} +{} %", s.input, percent));
  }
  svg.line(x(base), kSwingTop - 4, x(base), bottom, "axis", "as planned " + format_percent(base));
  return svg.finish();
}

std::string table(const std::vector<InputSwing>& swings, double base, double change) {
  const int percent = static_cast<int>(std::lround(100 * change));
  HtmlTable table{.columns = {{"input"},
                              {"as planned with", Align::kRight},
                              {fmt::format("MFU at -{} %", percent), Align::kRight},
                              {fmt::format("MFU at +{} %", percent), Align::kRight},
                              {"swing in points", Align::kRight}}};
  for (const InputSwing& s : swings)
    table.rows.push_back(
        {.cells = {{s.input, "strong"},
                   {s.value},
                   {format_percent(s.low_mfu)},
                   {format_percent(s.high_mfu)},
                   {fmt::format("{:.2f}", 100 * std::abs(s.high_mfu - s.low_mfu))}}});
  return fmt::format(
      "<details><summary>All {} inputs as a table (as planned: {})</summary>\n{}</details>\n",
      swings.size(), escape(format_percent(base)), to_html(table));
}

}  // namespace

std::string sensitivity_section(const PlanDocument& plan) {
  if (plan.swings.empty() || plan.ranked.empty() || !plan.ranked.front().mfu)
    return absent("This document keeps no sensitivity: piper plan on GPU clusters writes it.");
  const double base = *plan.ranked.front().mfu;
  std::vector<InputSwing> visible;
  std::vector<std::string> rest;
  for (const InputSwing& s : plan.swings) {
    if (is_visible(s, base))
      visible.push_back(s);
    else
      rest.push_back(s.input);
  }
  std::string out =
      paragraph(fmt::format("The best strategy kept as it is, each input changed alone by {:.0f} % "
                            "down and up. On a machine "
                            "that is really so, another strategy may be better.",
                            100 * plan.change));
  if (!visible.empty())
    out +=
        legend({{"loss", "lower MFU"}, {"gain", "higher MFU"}}) + chart(visible, base, plan.change);
  if (!rest.empty())
    out += paragraph(fmt::format("Without visible effect: {}.", fmt::join(rest, ", ")));
  return out + table(plan.swings, base, plan.change);
}

}  // namespace piper::report
