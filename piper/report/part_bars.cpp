#include <fmt/format.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/part_bars.h>
#include <piper/report/svg.h>

#include <algorithm>

namespace piper::report {
namespace {

constexpr double kPartLeft = 200, kPartRight = 130, kPartBar = 20, kPartRow = 32, kPartTop = 6;
constexpr size_t kNumPartColours = 10;

class PartChart {
 public:
  explicit PartChart(const PartBars& chart) : chart_(chart) {
    for (const PartBar& bar : chart.bars) {
      double sum = 0;
      for (const auto& [name, value] : bar.parts) {
        sum += value;
        if (value > 0 && std::ranges::find(names_, name) == names_.end()) names_.push_back(name);
      }
      high_ = std::max(high_, sum);
    }
    if (chart.limit && high_ > 0) high_ = std::max(high_, *chart.limit);
  }

  std::string draw() {
    if (high_ <= 0) return "";
    const double bottom = kPartTop + kPartRow * static_cast<double>(chart_.bars.size());
    const Scale x{0, high_ * 1.02, kPartLeft, kChartWidth - kPartRight};
    Svg svg(kChartWidth, bottom + 30, chart_.description);
    for (const double at : axis()) {
      svg.line(x(at), kPartTop, x(at), bottom, "grid");
      svg.text(x(at), bottom + 16, chart_.format(at), Anchor::kMiddle, "tick");
    }
    for (size_t i = 0; i < chart_.bars.size(); ++i)
      bar(svg, chart_.bars[i], x, kPartTop + kPartRow * static_cast<double>(i));
    if (chart_.limit)
      svg.line(x(*chart_.limit), kPartTop - 4, x(*chart_.limit), bottom, "limit",
               fmt::format("{} {}", chart_.limit_name, chart_.format(*chart_.limit)));
    return legend(entries()) + svg.finish();
  }

 private:
  std::string css_class(const std::string& name) const {
    const auto at = static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
    return fmt::format("part-{}", at % kNumPartColours);
  }

  std::vector<double> axis() const {
    if (!chart_.binary) return ticks(0, high_, 8);
    double step = 1;
    while (high_ / step > 10) step *= 2;
    std::vector<double> result;
    for (double at = 0; at <= high_; at += step) result.push_back(at);
    return result;
  }

  void bar(Svg& svg, const PartBar& bar, const Scale& x, double y) const {
    svg.text(kPartLeft - 10, y + kPartBar - 5, bar.label, Anchor::kEnd, "label");
    double from = 0;
    for (const auto& [name, value] : bar.parts) {
      if (value <= 0) continue;
      svg.rect(x(from), y, x(from + value) - x(from), kPartBar, css_class(name),
               fmt::format("{} {}{}{}", name, chart_.format(value), bar.title.empty() ? "" : "\n",
                           bar.title));
      from += value;
    }
    svg.text(kChartWidth - kPartRight + 12, y + kPartBar - 5, bar.note, Anchor::kStart,
             "tick strong");
  }

  std::vector<LegendEntry> entries() const {
    std::vector<LegendEntry> result;
    for (const std::string& name : names_) result.push_back({css_class(name), name});
    if (chart_.limit)
      result.push_back(
          {"limit", fmt::format("{} {}", chart_.limit_name, chart_.format(*chart_.limit))});
    return result;
  }

  const PartBars& chart_;
  std::vector<std::string> names_;  // in the order in which they appear
  double high_ = 0;
};

}  // namespace

std::string part_bars(const PartBars& chart) { return PartChart(chart).draw(); }

}  // namespace piper::report
