#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/report/metrics.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::report {
namespace {

constexpr double kMaxMetric = std::numeric_limits<double>::max();
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();

std::string text_of(Unit unit, double value) {
  switch (unit) {
    case Unit::kNats:
      return fmt::format("{:.4f}", value);
    case Unit::kNumber:
      return fmt::format("{:.2f}", value);
    case Unit::kPerSecond:
      return fmt::format("{:.0f}", value);
    case Unit::kFraction:
      return std::isnan(value) ? "-" : format_percent(value);
    case Unit::kBytes:
      return format_bytes(value);
    case Unit::kSeconds:
      return format_seconds(value);
    case Unit::kCount:
    case Unit::kFlag:
      return fmt::format("{:.0f}", value);
  }
  PIPER_CHECK(false);
}

Json json_of(Unit unit, double value) {
  switch (unit) {
    case Unit::kBytes:
    case Unit::kCount:
      return static_cast<int64_t>(value);
    case Unit::kFlag:
      return value != 0;
    case Unit::kNats:
    case Unit::kNumber:
    case Unit::kPerSecond:
    case Unit::kFraction:
    case Unit::kSeconds:
      return value;
  }
  PIPER_CHECK(false);
}

// The inverse of json_of, of a key that is there. Says what is wrong to the reader.
double read(ObjectReader& reader, const Metric& metric) {
  const std::string key(metric.name);
  switch (metric.unit) {
    case Unit::kBytes:
    case Unit::kCount:
      return static_cast<double>(reader.integer(key, 0, kMaxCount));
    case Unit::kFlag:
      return reader.boolean(key, false);
    case Unit::kNats:
      return reader.number(key, -kMaxMetric, kMaxMetric);
    case Unit::kNumber:
    case Unit::kPerSecond:
    case Unit::kFraction:
    case Unit::kSeconds:
      return reader.number(key, 0, kMaxMetric);
  }
  PIPER_CHECK(false);
}

bool is_shown(const Metric& metric, const std::optional<double>& value) {
  if (!value || metric.console.empty()) return false;
  return *value != 0 || (metric.unit != Unit::kCount && metric.unit != Unit::kFlag);
}

// The metric's part of the console's text, with the numbers in it.
std::string console_text(const StepMetrics& metrics, size_t row) {
  std::string text;
  std::string_view rest = kMetrics[row].console;
  for (size_t open; (open = rest.find('{')) != std::string_view::npos;) {
    const size_t close = rest.find('}', open);
    const std::string_view name = rest.substr(open + 1, close - open - 1);
    const auto* const named = std::ranges::find(kMetrics, name, &Metric::name);
    const size_t from = name.empty() ? row : static_cast<size_t>(named - kMetrics.begin());
    text += rest.substr(0, open);
    text += text_of(kMetrics.at(from).unit, metrics.values.at(from).value_or(0));
    rest.remove_prefix(close + 1);
  }
  return text.append(rest);
}

StepMetrics parse_step(ObjectReader& reader) {
  StepMetrics metrics{.step = reader.integer("step", 0, kMaxCount)};
  for (size_t row = 0; row < kMetrics.size(); ++row)
    if (reader.has(std::string(kMetrics[row].name)))
      metrics.values[row] = read(reader, kMetrics[row]);
  return metrics;
}

}  // namespace

StepMetrics metrics_of(const FinishedStep& step) {
  StepMetrics metrics{.step = step.number};
  for (size_t row = 0; row < kMetrics.size(); ++row) metrics.values[row] = kMetrics[row].of(step);
  return metrics;
}

Json to_json(const StepMetrics& metrics) {
  Json json{{"step", metrics.step}};
  for (size_t row = 0; row < kMetrics.size(); ++row) {
    const Metric& metric = kMetrics[row];
    if (const auto& value = metrics.values[row])
      json[std::string(metric.name)] = json_of(metric.unit, *value);
    else if (metric.zero_where_absent)
      json[std::string(metric.name)] = json_of(metric.unit, 0);
  }
  return json;
}

std::vector<std::string> console_lines(const StepMetrics& metrics) {
  const std::string begin = fmt::format("step {}", metrics.step);
  std::vector<std::string> lines{begin};
  for (const ConsolePlace place :
       {ConsolePlace::kFirst, ConsolePlace::kMiddle, ConsolePlace::kLast, ConsolePlace::kOwnLine})
    for (size_t row = 0; row < kMetrics.size(); ++row) {
      if (kMetrics[row].place != place || !is_shown(kMetrics[row], metrics.values[row])) continue;
      if (place == ConsolePlace::kOwnLine) lines.push_back(begin);
      (place == ConsolePlace::kOwnLine ? lines.back() : lines.front()) +=
          " | " + console_text(metrics, row);
    }
  return lines;
}

std::vector<std::pair<std::string, double>> tensorboard_scalars(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> scalars;
  for (size_t row = 0; row < kMetrics.size(); ++row)
    if (const auto& value = metrics.values[row]; value && !kMetrics[row].tensorboard.empty())
      scalars.emplace_back(kMetrics[row].tensorboard, *value);
  return scalars;
}

std::vector<StepMetrics> parse_metrics(std::string_view text, const std::string& source) {
  std::vector<StepMetrics> rows;
  int64_t line_number = 0;
  for (size_t at = 0; at < text.size();) {
    ++line_number;
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos) break;  // its end was never written
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}, line {}", source, line_number);
    Problems of_line(place);
    const Json json = parse_json(line, place);
    ObjectReader reader(json, "", &of_line);
    const StepMetrics row = parse_step(reader);
    of_line.finish();
    while (!rows.empty() && rows.back().step >= row.step) rows.pop_back();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace piper::report
