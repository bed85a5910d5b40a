#include <fmt/format.h>
#include <piper/report/axis.h>
#include <piper/report/html.h>
#include <piper/report/part_bars.h>
#include <piper/report/svg.h>

#include <algorithm>

namespace piper::report {
namespace {

constexpr double kWidth = 1080, kLeft = 200, kRight = 130, kBar = 20, kRow = 32, kTop = 6;
constexpr size_t kNumColours = 10;

class Chart {
 public:
  explicit Chart(const PartBars& chart) : chart_(chart) {
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
    const double bottom = kTop + kRow * static_cast<double>(chart_.bars.size());
    const Scale x{0, high_ * 1.02, kLeft, kWidth - kRight};
    Svg svg(kWidth, bottom + 30, chart_.description);
    for (const double at : axis()) {
      svg.line(x(at), kTop, x(at), bottom, "grid");
      svg.text(x(at), bottom + 16, chart_.format(at), Anchor::kMiddle, "tick");
    }
    for (size_t i = 0; i < chart_.bars.size(); ++i)
      bar(svg, chart_.bars[i], x, kTop + kRow * static_cast<double>(i));
    if (chart_.limit)
      svg.line(x(*chart_.limit), kTop - 4, x(*chart_.limit), bottom, "limit",
               fmt::format("{} {}", chart_.limit_name, chart_.format(*chart_.limit)));
    return legend(entries()) + svg.finish();
  }

 private:
  std::string css_class(const std::string& name) const {
    const auto at = static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
    return fmt::format("part-{}", at % kNumColours);
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
    svg.text(kLeft - 10, y + kBar - 5, bar.label, Anchor::kEnd, "label");
    double from = 0;
    for (const auto& [name, value] : bar.parts) {
      if (value <= 0) continue;
      svg.rect(x(from), y, x(from + value) - x(from), kBar, css_class(name),
               fmt::format("{} {}{}{}", name, chart_.format(value), bar.title.empty() ? "" : "\n",
                           bar.title));
      from += value;
    }
    svg.text(kWidth - kRight + 12, y + kBar - 5, bar.note, Anchor::kStart, "tick strong");
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

std::string part_bars(const PartBars& chart) { return Chart(chart).draw(); }

}  // namespace piper::report
