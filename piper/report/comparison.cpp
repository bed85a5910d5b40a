#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/report/comparison.h>

#include <cmath>
#include <limits>

namespace piper::report {
namespace {

constexpr double kMaxCompared = std::numeric_limits<double>::max();
constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

template <class Number>
void put(Json& json, const char* key, const std::optional<Number>& value) {
  if (value) json[key] = *value;
}

std::optional<double> compared(ObjectReader& reader, const char* key) {
  if (!reader.has(key)) return reader.ignore(key), std::nullopt;
  return reader.number(key, 0, kMaxCompared);
}

std::optional<int64_t> integer(ObjectReader& reader, const char* key) {
  if (!reader.has(key)) return reader.ignore(key), std::nullopt;
  return reader.integer(key, 0, kMaxBytes);
}

Json to_json(const ByteComponents& components) {
  Json json = Json::object();
  for (const auto& [name, bytes] : components) json[name] = bytes;
  return json;
}

Json to_json(const RankComparison& rank) {
  Json json;
  json["rank"] = rank.rank;
  put(json, "stage", rank.stage);
  put(json, "predicted_peak_bytes", rank.predicted_peak_bytes);
  put(json, "measured_peak_bytes", rank.measured_peak_bytes);
  put(json, "limit_bytes", rank.limit_bytes);
  json["predicted_component_bytes"] = to_json(rank.predicted_components);
  json["measured_component_bytes"] = to_json(rank.measured_components);
  return json;
}

ByteComponents parse_components(ObjectReader& reader, const char* key) {
  ByteComponents components;
  const Json* object = reader.object(key);
  if (object == nullptr) return components;
  ObjectReader bytes(*object, reader.path(key), reader.problems());
  for (const auto& [name, value] : object->items()) {
    components.emplace_back(name, bytes.integer(name, 0, kMaxBytes));
  }
  return components;
}

RankComparison parse_rank(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  RankComparison rank;
  rank.rank = reader.integer("rank", 0, 1 << 24);
  rank.stage = integer(reader, "stage");
  rank.predicted_peak_bytes = integer(reader, "predicted_peak_bytes");
  rank.measured_peak_bytes = integer(reader, "measured_peak_bytes");
  rank.limit_bytes = integer(reader, "limit_bytes");
  rank.predicted_components = parse_components(reader, "predicted_component_bytes");
  rank.measured_components = parse_components(reader, "measured_component_bytes");
  reader.refuse_unknown();
  return rank;
}

TimeComponent parse_time(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  TimeComponent component;
  component.name = reader.text("name");
  component.predicted_seconds = compared(reader, "predicted_seconds");
  component.measured_seconds = compared(reader, "measured_seconds");
  reader.refuse_unknown();
  return component;
}

}  // namespace

Json to_json(const Comparison& comparison) {
  Json json = Json::object();
  put(json, "predicted_step_seconds", comparison.predicted_step_seconds);
  put(json, "measured_step_seconds", comparison.measured_step_seconds);
  put(json, "predicted_mfu", comparison.predicted_mfu);
  put(json, "measured_mfu", comparison.measured_mfu);
  put(json, "planned_step_seconds", comparison.planned_step_seconds);
  put(json, "expected_step_seconds", comparison.expected_step_seconds);
  put(json, "expected_load_imbalance", comparison.expected_load_imbalance);
  put(json, "measured_load_imbalance", comparison.measured_load_imbalance);
  put(json, "machine_slowdown", comparison.machine_slowdown);
  if (!comparison.no_prediction.empty()) json["no_prediction"] = comparison.no_prediction;
  put(json, "measured_step", comparison.measured_step);
  put(json, "num_steps", comparison.num_steps);
  json["time_components"] = Json::array();
  for (const TimeComponent& component : comparison.time_components) {
    Json entry;
    entry["name"] = component.name;
    put(entry, "predicted_seconds", component.predicted_seconds);
    put(entry, "measured_seconds", component.measured_seconds);
    json["time_components"].push_back(entry);
  }
  json["ranks"] = Json::array();
  for (const RankComparison& rank : comparison.ranks) json["ranks"].push_back(to_json(rank));
  return json;
}

Comparison parse_comparison(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  Comparison comparison;
  comparison.predicted_step_seconds = compared(reader, "predicted_step_seconds");
  comparison.measured_step_seconds = compared(reader, "measured_step_seconds");
  comparison.predicted_mfu = compared(reader, "predicted_mfu");
  comparison.measured_mfu = compared(reader, "measured_mfu");
  comparison.planned_step_seconds = compared(reader, "planned_step_seconds");
  comparison.expected_step_seconds = compared(reader, "expected_step_seconds");
  // Runs of before were predicted at an even load.
  if (const auto even = compared(reader, "balanced_step_seconds"); even)
    comparison.expected_step_seconds = even, comparison.expected_load_imbalance = 1;
  if (const auto expected = compared(reader, "expected_load_imbalance"); expected)
    comparison.expected_load_imbalance = expected;
  comparison.measured_load_imbalance = compared(reader, "measured_load_imbalance");
  comparison.machine_slowdown = compared(reader, "machine_slowdown");
  comparison.no_prediction = reader.text("no_prediction", "");
  comparison.measured_step = integer(reader, "measured_step");
  comparison.num_steps = integer(reader, "num_steps");
  if (const Json* times = reader.array("time_components")) {
    for (size_t i = 0; i < times->size(); ++i) {
      comparison.time_components.push_back(
          parse_time((*times)[i], fmt::format("time_components[{}]", i), &problems));
    }
  }
  if (const Json* ranks = reader.array("ranks")) {
    for (size_t i = 0; i < ranks->size(); ++i) {
      comparison.ranks.push_back(parse_rank((*ranks)[i], fmt::format("ranks[{}]", i), &problems));
    }
  }
  reader.refuse_unknown();
  problems.finish();
  return comparison;
}

std::vector<Deviation> deviations(const Comparison& c, double bound) {
  std::vector<Deviation> found;
  const auto look = [&](const std::string& name, std::optional<double> assumed,
                        std::optional<double> measured, double limit, auto format) {
    if (!assumed || !measured || *assumed <= 0) return;
    const double relative = (*measured - *assumed) / *assumed;
    if (std::abs(relative) > limit)
      found.push_back({name, format(*assumed), format(*measured), relative});
  };
  look("step time", c.predicted_step_seconds, c.measured_step_seconds, bound, format_seconds);
  look("step time, as planned", c.planned_step_seconds, c.measured_step_seconds, bound,
       format_seconds);
  // A component's error counts by what it does to the step: a short one may be far off.
  const double step = c.predicted_step_seconds.value_or(0);
  for (const TimeComponent& time : c.time_components)
    if (time.predicted_seconds && time.measured_seconds &&
        std::abs(*time.measured_seconds - *time.predicted_seconds) > bound * step)
      look(time.name, time.predicted_seconds, time.measured_seconds, 0, format_seconds);
  const auto ratio = [](double value) { return fmt::format("{:.2f}", value); };
  // The prediction has the real routes: this load is what the plan assumed.
  if (c.planned_step_seconds)
    look("load imbalance, as planned (busiest expert over mean)", c.expected_load_imbalance,
         c.measured_load_imbalance, bound, ratio);
  for (const RankComparison& rank : c.ranks)
    if (rank.predicted_peak_bytes && rank.measured_peak_bytes)
      look(fmt::format("peak memory, rank {}", rank.rank),
           static_cast<double>(*rank.predicted_peak_bytes),
           static_cast<double>(*rank.measured_peak_bytes), kMemoryBound, format_bytes);
  return found;
}

std::optional<double> relative_error(std::optional<double> predicted,
                                     std::optional<double> measured) {
  if (!predicted || !measured || *measured == 0) return std::nullopt;
  return (*predicted - *measured) / *measured;
}

}  // namespace piper::report
