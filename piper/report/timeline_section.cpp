// The predicted and the measured step over one time axis.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/gantt_chart.h>
#include <piper/report/html.h>
#include <piper/report/line_chart.h>
#include <piper/report/sections.h>

#include <algorithm>
#include <array>

namespace piper::report {
namespace {

constexpr size_t kMaxTimelineRanks = 16;
constexpr size_t kMaxCurves = 4;

bool has(const Gantt* gantt) { return gantt != nullptr && !gantt->ranks.empty(); }

std::vector<LegendEntry> entries(const Gantt* predicted, const Gantt* measured) {
  std::array<bool, kBarClasses.size()> seen{};
  for (const Gantt* gantt : {predicted, measured}) {
    if (!has(gantt)) continue;
    for (const GanttRank& rank : gantt->ranks) {
      for (const Bar& bar : rank.bars) seen[static_cast<size_t>(bar.bar_class)] = true;
    }
  }
  std::vector<LegendEntry> result;
  for (const BarClass bar_class : kBarClasses) {
    if (seen[static_cast<size_t>(bar_class)])
      result.push_back({css_class(bar_class), name(bar_class)});
  }
  result.push_back({"idle", "idle (bubble or waiting)"});
  return result;
}

std::string chart(const char* title, const char* missing, const Gantt* gantt, double axis_seconds,
                  const std::string& of = "") {
  std::string out = fmt::format("<h3>{}", escape(title));
  if (!has(gantt)) return out + "</h3>\n" + absent(missing);
  out +=
      fmt::format(" <small>{} · {} ranks{}</small></h3>\n", escape(format_seconds(gantt->seconds)),
                  gantt->ranks.size(), of.empty() ? "" : " · " + escape(of));
  out += gantt_chart(*gantt, {.description = fmt::format("{} timeline of one step", title),
                              .axis_seconds = axis_seconds,
                              .max_ranks = kMaxTimelineRanks});
  if (gantt->ranks.size() > kMaxTimelineRanks) {
    out +=
        paragraph(fmt::format("{} of {} ranks are drawn.", kMaxTimelineRanks, gantt->ranks.size()));
  }
  return out;
}

// Live memory over the step, as steps of a staircase, for the first few ranks.
std::string memory_over_time(const char* title, const Gantt* gantt) {
  constexpr double kMiB = 1024.0 * 1024.0;
  if (!has(gantt)) return "";
  LineChart chart{.description = fmt::format("{} memory over one step", title),
                  .x_label = "time in the step",
                  .y_label = fmt::format("Live memory over the step, {} (MiB)", title),
                  .from_zero = true,
                  .height = 200,
                  .format_x = format_seconds};
  for (const GanttRank& rank : gantt->ranks) {
    if (rank.memory.empty() || chart.series.size() == kMaxCurves) continue;
    Series series{
        .name = rank.label,
        .css_class = fmt::format("series-{}", static_cast<char>('a' + chart.series.size()))};
    for (const graph::MemorySample& sample : rank.memory) {
      if (!series.points.empty()) {
        series.points.emplace_back(sample.seconds, series.points.back().second);
      }
      series.points.emplace_back(sample.seconds, static_cast<double>(sample.bytes) / kMiB);
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

}  // namespace

std::string simulated_section(const Gantt& gantt) {
  if (!has(&gantt)) return absent("The step was not simulated.");
  return legend(entries(&gantt, nullptr)) + chart("Predicted", "", &gantt, gantt.seconds) +
         "<details><summary>Live memory over the step</summary>\n" +
         memory_over_time("predicted", &gantt) + "</details>\n";
}

std::string timeline_section(const Gantt* predicted, const Gantt* measured,
                             const Comparison* comparison) {
  if (!has(predicted) && !has(measured)) {
    return absent("No timeline was kept with this run, neither simulated nor measured.");
  }
  const double axis_seconds =
      std::max(has(predicted) ? predicted->seconds : 0, has(measured) ? measured->seconds : 0);
  return legend(entries(predicted, measured)) +
         chart("Predicted", "The step was not simulated.", predicted, axis_seconds) +
         chart("Measured", "No step was measured.", measured, axis_seconds,
               measured_step_text(comparison)) +
         "<details><summary>Live memory over the step</summary>\n" +
         memory_over_time("predicted", predicted) + memory_over_time("measured", measured) +
         "</details>\n";
}

}  // namespace piper::report
