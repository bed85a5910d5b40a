#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/report/ranked_strategies.h>

#include <cmath>
#include <limits>

namespace piper::report {
namespace {

constexpr double kMaxNumber = std::numeric_limits<double>::max();
constexpr double kMaxBytes = 9e18;
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();

std::optional<double> number(ObjectReader& reader, const char* key) {
  return reader.has(key) ? std::optional(reader.number(key, 0, kMaxNumber)) : std::nullopt;
}

// Bytes; those that were computed rather than counted may have a fraction.
std::optional<int64_t> bytes(ObjectReader& reader, const char* key) {
  if (!reader.has(key)) return std::nullopt;
  return static_cast<int64_t>(std::llround(reader.number(key, 0, kMaxBytes)));
}

// A name, or an object that carries one.
std::string name_of(ObjectReader& reader, const char* key) {
  if (!reader.has(key)) return "";
  const Json& value = reader.raw(key);
  if (!value.is_object()) return reader.text(key);
  return ObjectReader(value, reader.path(key), reader.problems()).text("name", "");
}

StrategyRow parse_row(ObjectReader& reader) {
  StrategyRow row;
  if (const Json* mesh = reader.object("mesh")) {
    row.mesh = mesh_words(*mesh);
  } else {
    reader.problem("mesh", "is missing");
  }
  row.schedule = reader.text("schedule", "");
  row.recompute = reader.text("recompute", "");
  row.micro_batch_sequences = reader.integer("micro_batch_sequences", 0, kMaxInteger, 0);
  row.num_micro_batches = reader.integer("num_micro_batches", 0, kMaxInteger, 0);
  row.chosen = reader.boolean("chosen", false);
  if (const Json* predicted = reader.object("predicted")) {
    ObjectReader values(*predicted, reader.path("predicted"), reader.problems());
    row.mfu = number(values, "mfu");
    row.step_seconds = number(values, "step_seconds");
    row.peak_bytes = bytes(values, "peak_bytes");
  }
  if (const Json* measured = reader.object("measured")) {
    ObjectReader values(*measured, reader.path("measured"), reader.problems());
    row.measured_mfu = number(values, "mfu");
    row.measured_step_seconds = number(values, "step_seconds");
    row.measured_peak_bytes = bytes(values, "peak_bytes");
  }
  return row;
}

std::vector<std::string> parse_notes(ObjectReader& reader) {
  std::vector<std::string> notes;
  if (const Json* array = reader.array("notes")) {
    for (const Json& note : *array) {
      if (note.is_string()) notes.push_back(note.get<std::string>());
    }
  }
  return notes;
}

// A strategy's own record: the only row, and the devices are its ranks.
void parse_single(ObjectReader& reader, RankedStrategies& result) {
  result.rows.push_back(parse_row(reader));
  const Json* mesh = reader.object("mesh");
  if (mesh == nullptr) return;
  ObjectReader axes(*mesh, "mesh", reader.problems());
  result.num_devices = axes.integer("pp", 1, 1 << 24) * axes.integer("dp", 1, 1 << 24);
}

RejectedFamily parse_rejected(ObjectReader& reader) {
  RejectedFamily rejected{.family = reader.text("family", ""),
                          .constraint = reader.text("constraint", ""),
                          .smallest_change = reader.text("smallest_change", "")};
  const std::string equation = reader.text("equation", "");
  if (!equation.empty()) rejected.constraint += " (" + equation + ")";
  return rejected;
}

}  // namespace

std::string mesh_words(const Json& mesh) {
  std::string words;
  for (const auto& [axis, degree] : mesh.items()) {
    if (!degree.is_number_integer()) continue;
    words += fmt::format("{}{} {}", words.empty() ? "" : " · ", axis, degree.get<int64_t>());
  }
  return words;
}

RankedStrategies parse_ranked_strategies(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  RankedStrategies result;
  result.model = name_of(reader, "model");
  result.cluster = name_of(reader, "cluster");
  result.num_devices = reader.integer("num_devices", 0, kMaxInteger, 0);
  result.notes = parse_notes(reader);
  if (!reader.has("strategies") && reader.has("mesh")) {
    parse_single(reader, result);
  } else if (const Json* strategies = reader.array("strategies")) {
    for (size_t i = 0; i < strategies->size(); ++i) {
      ObjectReader row((*strategies)[i], fmt::format("strategies[{}]", i), &problems);
      result.rows.push_back(parse_row(row));
    }
  } else if (problems.empty()) {
    problems.add("strategies", "is missing");
  }
  const Json* rejected = reader.array("rejected");
  for (size_t i = 0; rejected != nullptr && i < rejected->size(); ++i) {
    ObjectReader entry((*rejected)[i], fmt::format("rejected[{}]", i), &problems);
    result.rejected.push_back(parse_rejected(entry));
  }
  problems.finish();
  return result;
}

}  // namespace piper::report
