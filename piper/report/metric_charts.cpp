#include <fmt/format.h>
#include <piper/base/traits.h>
#include <piper/report/line_chart.h>
#include <piper/report/metric_charts.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace piper::report {
namespace {

// What the charts look like. In both texts {0} stands for the labels of the curves, joined, and {1}
// for the number of steps in the first of them.
struct ChartTraits {
  MetricChart value;
  const char* name;  // for who cannot see the chart
  const char* title;
  double height;
  bool is_left_out_at_zero = false;  // where no step has a number other than 0
};
constexpr std::array kChartTraits{
    ChartTraits{MetricChart::kNone, "", "", 0},
    ChartTraits{MetricChart::kLoss, "Loss over {1} steps", "Mean loss of a token (nats)", 300},
    ChartTraits{MetricChart::kOfItsOwn, "{0} over the steps", "{0}, over the steps", 160},
    ChartTraits{MetricChart::kImbalance, "Load imbalance over the steps",
                "{0}, in even shares, over the steps", 200},
    ChartTraits{MetricChart::kDropped, "Copies of tokens dropped over the steps",
                "Copies of tokens beyond the experts' capacity, %, over the steps", 200, true},
};
static_assert(are_in_order(kChartTraits));

Series series_of(size_t row, const std::vector<StepMetrics>& steps) {
  const Metric& metric = kMetrics[row];
  Series series{.name = std::string(metric.label), .css_class = std::string(metric.css_class)};
  const double scale = metric.unit == Unit::kFraction ? 100 : 1;
  for (const StepMetrics& step : steps)
    if (const auto& value = step.values[row])
      series.points.emplace_back(static_cast<double>(step.step), scale * *value);
  return series;
}

bool is_zero(const Series& series) {
  return std::ranges::all_of(series.points, [](const auto& point) { return point.second == 0; });
}

// "Busiest expert and busiest rank".
std::string joined_names(const std::vector<Series>& all) {
  std::string text;
  for (const Series& series : all) text += (text.empty() ? "" : " and ") + series.name;
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string draw(MetricChart chart, std::vector<Series> series) {
  const ChartTraits& row = kChartTraits.at(static_cast<size_t>(chart));
  if (row.is_left_out_at_zero && std::ranges::all_of(series, is_zero)) return "";
  const std::string names = joined_names(series);
  const size_t num_steps = series.front().points.size();
  return line_chart({.description = fmt::format(fmt::runtime(row.name), names, num_steps),
                     .x_label = "step",
                     .y_label = fmt::format(fmt::runtime(row.title), names, num_steps),
                     .series = std::move(series),
                     .height = row.height});
}

}  // namespace

std::string metric_charts(MetricChart chart, const std::vector<StepMetrics>& steps) {
  std::vector<Series> shared;
  std::string apart;
  for (size_t row = 0; row < kMetrics.size(); ++row) {
    if (kMetrics[row].chart != chart) continue;
    Series series = series_of(row, steps);
    if (series.points.empty()) continue;
    if (chart == MetricChart::kOfItsOwn)
      apart += draw(chart, {std::move(series)});
    else
      shared.push_back(std::move(series));
  }
  return shared.empty() ? apart : draw(chart, std::move(shared));
}

}  // namespace piper::report
