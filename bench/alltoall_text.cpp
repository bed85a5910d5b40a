// What `piper bench alltoall` writes: the columns of nccl-tests, JSON, a picture.
#include <bench/alltoall.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/report/line_chart.h>

#include <map>

namespace piper::cli {
namespace {

double algorithm_bandwidth(const AllToAllPoint& point) {
  return static_cast<double>(point.bytes) / point.measured.seconds;
}

// Without a rank's part for itself.
double bus_bandwidth(const AllToAllRun& run, const AllToAllPoint& point) {
  const auto n = static_cast<double>(run.num_ranks);
  return algorithm_bandwidth(point) * (n - 1) / n;
}

std::string microseconds(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.2f}", *seconds * 1e6) : "-";
}

std::string over(double seconds, const std::optional<double>& limit) {
  return limit && *limit > 0 ? fmt::format("{:.2f}", seconds / *limit) : "-";
}

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// Colours that differ, for light and dark.
constexpr const char* kStyle =
    ".s0{stroke:#1f77b4}.s1{stroke:#ff7f0e}.s2{stroke:#2ca02c}.s3{stroke:#d62728}.s4{stroke:#"
    "9467bd}"
    ".s5{stroke:#8c564b}.s6{stroke:#e377c2}.s7{stroke:#17becf}.s8{stroke:#bcbd22}.s9{stroke:#"
    "7f7f7f}"
    ".s10{stroke:#393b79}.s11{stroke:#637939}.s12{stroke:#e7298a;stroke-dasharray:8 "
    "3}.s13{stroke:#00429d;stroke-dasharray:8 3}.limit{stroke:#000;stroke-dasharray:4 3}"
    ".curve{fill:none;stroke-width:2}.grid{stroke:#ccc}text{font:12px sans-serif}"
    "svg{background:#fff}";

// A chart of the page as a picture by itself: its style and its legend inside.
std::string with_legend(const std::string& chart, const std::vector<report::Series>& series) {
  constexpr double kLeft = 90, kTop = 24, kLine = 16, kStroke = 24;
  std::string legend;
  for (size_t i = 0; i < series.size(); ++i) {
    const double y = kTop + kLine * static_cast<double>(i);
    legend += fmt::format(
        "<line class=\"curve {}\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/><text x=\"{}\" "
        "y=\"{}\">{}"
        "</text>",
        series[i].css_class, kLeft, kLeft + kStroke, y, y, kLeft + kStroke + 8, y + 4,
        series[i].name);
  }
  const size_t begin = chart.find("<svg"), end = chart.rfind("</svg>");
  if (begin == std::string::npos || end == std::string::npos) return "";
  const size_t inside = chart.find('>', begin) + 1;
  return "<svg" + chart.substr(begin + 4, inside - begin - 4) + "<style>" + kStyle + "</style>" +
         chart.substr(inside, end - inside) + legend + "</svg>\n";
}

}  // namespace

int64_t AllToAllRun::num_wrong() const {
  int64_t wrong = 0;
  for (const AllToAllPoint& point : points) wrong += point.num_wrong();
  return wrong;
}

std::string to_text(const AllToAllRun& run) {
  constexpr const char* kRow =
      "{:>12} {:>12} {:>6} {:>6} {:>5} {:>12} {:>8} {:>8} {:>7}  {:<20} {:>12} {:>8} {:>12}\n";
  std::string text = fmt::format("# all-to-all, {} rank{} on {} node{}, {}, load {}\n#\n",
                                 run.num_ranks, run.num_ranks == 1 ? "" : "s", run.num_nodes,
                                 run.num_nodes == 1 ? "" : "s", run.transport, run.load);
  const std::string row = kRow;
  text +=
      "# " + fmt::format(fmt::runtime(row), "size", "count", "type", "redop", "root", "time",
                         "algbw", "busbw", "#wrong", "algorithm", "limit", "time /", "predicted");
  text += "# " + fmt::format(fmt::runtime(row), "(B)", "(elements)", "", "", "", "(us)", "(GB/s)",
                             "(GB/s)", "", "", "(us)", "limit", "(us)");
  double bus = 0;
  for (const AllToAllPoint& point : run.points) {
    bus += bus_bandwidth(run, point);
    text +=
        "  " + fmt::format(fmt::runtime(row), point.bytes, point.bytes_per_pair, "uint8", "none",
                           -1, microseconds(point.measured.seconds),
                           fmt::format("{:.4g}", algorithm_bandwidth(point) * 1e-9),
                           fmt::format("{:.4g}", bus_bandwidth(run, point) * 1e-9),
                           point.num_wrong(), point.algorithm, microseconds(point.limit_seconds),
                           over(point.measured.seconds, point.limit_seconds),
                           microseconds(point.predicted_seconds));
  }
  text += fmt::format("# Wrong bytes          : {} {}\n", run.num_wrong(),
                      run.num_wrong() == 0 ? "OK" : "FAILED");
  if (!run.points.empty())
    text += fmt::format("# Average bus bandwidth: {:.4g} GB/s\n",
                        bus / static_cast<double>(run.points.size()) * 1e-9);
  return text;
}

Json to_json(const AllToAllRun& run) {
  Json json{{"collective", "alltoall"},
            {"transport", run.transport},
            {"ranks", run.num_ranks},
            {"nodes", run.num_nodes},
            {"load", run.load}};
  json["points"] = Json::array();
  for (const AllToAllPoint& point : run.points)
    json["points"].push_back({{"algorithm", point.algorithm},
                              {"transport", run.transport},
                              {"bytes_per_pair", point.bytes_per_pair},
                              {"bytes", point.bytes},
                              {"seconds", point.measured.seconds},
                              {"low_seconds", point.measured.timing.low_seconds},
                              {"high_seconds", point.measured.timing.high_seconds},
                              {"num_samples", point.measured.timing.num_samples},
                              {"algorithm_bytes_per_second", algorithm_bandwidth(point)},
                              {"bus_bytes_per_second", bus_bandwidth(run, point)},
                              {"limit_seconds", number(point.limit_seconds)},
                              {"predicted_seconds", number(point.predicted_seconds)},
                              {"wrong", point.num_wrong()}});
  json["wrong"] = run.num_wrong();
  return json;
}

std::string to_svg(const AllToAllRun& run) {
  report::LineChart chart{
      .description =
          fmt::format("All-to-all of {} ranks on {} node{}, {}, load {}", run.num_ranks,
                      run.num_nodes, run.num_nodes == 1 ? "" : "s", run.transport, run.load),
      .x_label = "bytes a pair",
      .y_label = "seconds",
      .log_x = true,
      .log_y = true,
      .height = 420};
  chart.format_x = [](double bytes) { return format_bytes(bytes); };
  chart.format_y = [](double seconds) { return format_seconds(seconds); };
  std::map<std::string, size_t> index;
  report::Series limit{.name = "limit", .css_class = "limit"};
  for (const AllToAllPoint& point : run.points) {
    const auto x = static_cast<double>(point.bytes_per_pair);
    const auto [place, first] = index.try_emplace(point.algorithm, chart.series.size());
    if (first)
      chart.series.push_back(
          {.name = point.algorithm, .css_class = fmt::format("s{}", chart.series.size() % 14)});
    chart.series[place->second].points.emplace_back(x, point.measured.seconds);
    const bool known = point.limit_seconds && *point.limit_seconds > 0;
    if (known && (limit.points.empty() || limit.points.back().first < x))
      limit.points.emplace_back(x, *point.limit_seconds);
  }
  if (!limit.points.empty()) chart.series.push_back(std::move(limit));
  return with_legend(report::line_chart(chart), chart.series);
}

}  // namespace piper::cli
