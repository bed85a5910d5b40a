#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/metrics.h>

#include <cmath>
#include <limits>
#include <utility>

namespace piper::report {
namespace {

constexpr double kMaxNumber = std::numeric_limits<double>::max();

template <class Number>
void put(Json& json, const char* key, const std::optional<Number>& value) {
  if (value) json[key] = *value;
}

std::optional<double> number(ObjectReader& reader, const char* key, double min = 0) {
  if (!reader.has(key)) return std::nullopt;
  return reader.number(key, min, kMaxNumber);
}

MetricsRow parse_row(ObjectReader& reader) {
  constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
  MetricsRow row;
  row.step = reader.integer("step", 0, kMaxInteger);
  row.loss = number(reader, "loss", -kMaxNumber);
  row.validation_loss = number(reader, "validation_loss", -kMaxNumber);
  row.grad_norm = number(reader, "grad_norm");
  row.learning_rate = number(reader, "learning_rate");
  row.step_seconds = number(reader, "step_seconds");
  row.tokens_per_second = number(reader, "tokens_per_second");
  row.mfu = number(reader, "mfu");
  if (reader.has("peak_bytes")) row.peak_bytes = reader.integer("peak_bytes", 0, kMaxInteger);
  row.load_imbalance = number(reader, "load_imbalance");
  row.dropped_fraction = number(reader, "dropped_fraction");
  row.rank_imbalance = number(reader, "rank_imbalance");
  for (const auto& [key, value] : {std::pair{"migrated_experts", &row.migrated_experts},
                                   std::pair{"migrated_bytes", &row.migrated_bytes}})
    if (reader.has(key)) *value = reader.integer(key, 0, kMaxInteger);
  row.rebalance_seconds = number(reader, "rebalance_seconds");
  return row;
}

}  // namespace

Json to_json(const MetricsRow& row) {
  Json json;
  json["step"] = row.step;
  put(json, "loss", row.loss);
  put(json, "validation_loss", row.validation_loss);
  put(json, "grad_norm", row.grad_norm);
  put(json, "learning_rate", row.learning_rate);
  put(json, "step_seconds", row.step_seconds);
  put(json, "tokens_per_second", row.tokens_per_second);
  put(json, "mfu", row.mfu);
  put(json, "peak_bytes", row.peak_bytes);
  put(json, "load_imbalance", row.load_imbalance);
  put(json, "dropped_fraction", row.dropped_fraction);
  put(json, "rank_imbalance", row.rank_imbalance);
  put(json, "migrated_experts", row.migrated_experts);
  put(json, "migrated_bytes", row.migrated_bytes);
  put(json, "rebalance_seconds", row.rebalance_seconds);
  return json;
}

std::vector<MetricsRow> parse_metrics(std::string_view text, const std::string& source) {
  std::vector<MetricsRow> rows;
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
    const MetricsRow row = parse_row(reader);
    of_line.finish();
    while (!rows.empty() && rows.back().step >= row.step) rows.pop_back();
    rows.push_back(row);
  }
  return rows;
}

}  // namespace piper::report
