#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/report/plan_document.h>

#include <algorithm>
#include <limits>

namespace piper::report {
namespace {

constexpr double kMaxPlanned = 1e30;
constexpr int64_t kMaxPlannedCount = std::numeric_limits<int64_t>::max();

std::optional<double> planned(ObjectReader& reader, const char* key) {
  return reader.has(key) ? std::optional(reader.number(key, 0, kMaxPlanned)) : std::nullopt;
}
double number_or_zero(ObjectReader& reader, const char* key) {
  return reader.number(key, 0, kMaxPlanned, 0);
}
int64_t count(ObjectReader& reader, const char* key) {
  return reader.integer(key, 0, kMaxPlannedCount, 0);
}

// A name, or an object that carries one.
std::string name_of(ObjectReader& reader, const char* key) {
  if (!reader.has(key)) return "";
  const Json& value = reader.raw(key);
  if (!value.is_object()) return reader.text(key);
  return ObjectReader(value, reader.path(key), reader.problems()).text("name", "");
}

std::vector<std::string> texts(ObjectReader& reader, const char* key) {
  std::vector<std::string> result;
  if (const Json* array = reader.array(key))
    for (const Json& text : *array)
      if (text.is_string()) result.push_back(text.get<std::string>());
  return result;
}

// visit(ObjectReader&) for every entry of an array that may be missing.
template <class Visit>
void for_each(ObjectReader& reader, const std::string& key, Visit visit) {
  const Json* array = reader.array(key);
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    ObjectReader entry((*array)[i], fmt::format("{}[{}]", reader.path(key), i), reader.problems());
    visit(entry);
  }
}

// Every number of the object whose key ends with the unit: {"idle_seconds": 1} is {"idle", 1}.
Parts parts_of(ObjectReader& reader, const char* key, const std::string& unit) {
  Parts parts;
  const Json* object = reader.object(key);
  if (object == nullptr) return parts;
  for (const auto& [name, value] : object->items()) {
    if (!value.is_number() || !name.ends_with(unit)) continue;
    if (value.get<double>() < 0) {
      reader.problem(key, fmt::format("'{}' is below 0", name));
      continue;
    }
    std::string words = name.substr(0, name.size() - unit.size());
    std::ranges::replace(words, '_', ' ');
    parts.emplace_back(std::move(words), value.get<double>());
  }
  return parts;
}

// Axes of degree 1 are left out, but for the three that every strategy has.
std::string mesh_of(const Json& mesh) {
  Json shown = Json::object();
  for (const auto& [axis, degree] : mesh.items()) {
    const bool always = axis == "pp" || axis == "ep" || axis == "dp";
    if (axis != "edp" && (always || degree != 1)) shown[axis] = degree;
  }
  return mesh_words(shown);
}

std::string further_of(ObjectReader& reader) {
  std::string words;
  const auto add = [&](const std::string& what) { words += (words.empty() ? "" : " · ") + what; };
  if (const int64_t zero = reader.integer("zero", 0, 3, 0); zero > 0)
    add(fmt::format("zero {}", zero));
  if (reader.boolean("sequence_parallel", false)) add("sequence parallel");
  if (const std::string offload = reader.text("offload", "none"); offload != "none")
    add("offload " + offload);
  if (const std::string placement = reader.text("placement", ""); placement == "tp-cp-ep-pp-dp")
    add(placement);
  return words;
}

PlanRow parse_plan_row(ObjectReader& reader) {
  PlanRow row;
  if (const Json* mesh = reader.object("mesh"))
    row.mesh = mesh_of(*mesh);
  else
    reader.problem("mesh", "is missing");
  row.further = further_of(reader);
  row.what = reader.text("what", "");
  row.schedule = reader.text("schedule", "");
  row.recompute = reader.text("recompute", "");
  row.micro_batch_sequences = count(reader, "micro_batch_sequences");
  row.num_micro_batches = count(reader, "num_micro_batches");
  row.chosen = reader.boolean("chosen", false);
  if (const Json* measured = reader.object("measured")) {
    ObjectReader values(*measured, reader.path("measured"), reader.problems());
    row.measured_mfu = planned(values, "mfu");
    row.measured_step_seconds = planned(values, "step_seconds");
    row.measured_peak_bytes = planned(values, "peak_bytes");
  }
  const Json* predicted = reader.object("predicted");
  if (predicted == nullptr) return row;
  ObjectReader values(*predicted, reader.path("predicted"), reader.problems());
  row.mfu = planned(values, "mfu");
  row.step_seconds = planned(values, "step_seconds");
  row.peak_bytes = planned(values, "peak_bytes");
  row.seconds = parts_of(values, "time", "_seconds");
  row.bytes = parts_of(values, "memory", "_bytes");
  std::erase_if(row.bytes, [](const auto& part) { return part.first == "device"; });  // the limit
  row.not_runnable = texts(values, "not_runnable");
  row.untrainable = texts(values, "untrainable");
  row.runs_with = texts(values, "runs_with");
  if (const Json* json = values.object("heavy_load")) {
    ObjectReader heavy(*json, values.path("heavy_load"), reader.problems());
    row.heavy_load = heavy.text("load", "");
    row.heavy_step_seconds = planned(heavy, "step_seconds");
    row.heavy_peak_bytes = planned(heavy, "peak_bytes");
    row.fits_heavy_load = heavy.boolean("fits", false);
  }
  return row;
}

std::optional<PlanRow> optional_row(ObjectReader& reader, const char* key) {
  const Json* object = reader.object(key);
  if (object == nullptr) return std::nullopt;
  ObjectReader row(*object, reader.path(key), reader.problems());
  return parse_plan_row(row);
}

PlanFamily parse_family(ObjectReader& reader) {
  return {.family = reader.text("family", ""),
          .why_it_lost = reader.text("why_it_lost", ""),
          .smallest_change = reader.text("smallest_change", ""),
          .wins = reader.boolean("wins", false),
          .num_priced = count(reader, "num_priced"),
          .best = optional_row(reader, "best"),
          .nearest = optional_row(reader, "nearest")};
}

FrontPoint parse_front_point(ObjectReader& reader) {
  return {.mfu = reader.number("mfu", 0, kMaxPlanned),
          .step_seconds = reader.number("step_seconds", 0, kMaxPlanned),
          .peak_bytes = reader.number("peak_bytes", 0, kMaxPlanned),
          .strategy = reader.text("strategy", "")};
}

// Reads what concerns the best strategy: it stands beside the ranking, or in a single strategy's
// own predictions.
void parse_insight(ObjectReader& reader, PlanDocument& plan) {
  if (reader.has("memory_limit_bytes"))
    plan.memory_limit_bytes = planned(reader, "memory_limit_bytes");
  if (const Json* object = reader.object("sensitivity")) {
    ObjectReader values(*object, reader.path("sensitivity"), reader.problems());
    plan.change = values.number("change", 0, 1, 0);
    for_each(values, "inputs", [&](ObjectReader& r) {
      plan.swings.push_back({r.text("input", ""), r.text("value", ""),
                             r.number("low_mfu", 0, kMaxPlanned),
                             r.number("high_mfu", 0, kMaxPlanned)});
    });
  }
  if (const Json* object = reader.object("roofline")) {
    ObjectReader values(*object, reader.path("roofline"), reader.problems());
    plan.roofs = Roofs{number_or_zero(values, "peak_flops_per_second"),
                       number_or_zero(values, "memory_bytes_per_second"),
                       {}};
    for_each(values, "points", [&](ObjectReader& r) {
      plan.roofs->points.push_back({r.text("part", ""), r.text("bound", ""), count(r, "num_layers"),
                                    number_or_zero(r, "flops_per_byte"),
                                    number_or_zero(r, "peak_flops_per_second"),
                                    number_or_zero(r, "attainable_flops_per_second"),
                                    number_or_zero(r, "predicted_flops_per_second")});
    });
  }
}

void parse_defaults(ObjectReader& reader, PlanDocument& plan) {
  const Json* defaults = reader.object("defaults");
  if (defaults == nullptr) return;
  for (const auto& [name, entry] : defaults->items()) {
    ObjectReader values(entry, reader.path("defaults") + "." + name, reader.problems());
    const Json& value = values.raw("value");
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    plan.defaults.emplace_back(name, fmt::format("{} ({})", text, values.text("why", "")));
  }
}

void parse_rivals(ObjectReader& reader, PlanDocument& plan) {
  for_each(reader, "strategies",
           [&](ObjectReader& r) { plan.ranked.push_back(parse_plan_row(r)); });
  for_each(reader, "choices", [&](ObjectReader& r) { plan.choices.push_back(parse_plan_row(r)); });
  for_each(reader, "families", [&](ObjectReader& r) { plan.families.push_back(parse_family(r)); });
  for_each(reader, "pareto", [&](ObjectReader& r) { plan.front.push_back(parse_front_point(r)); });
  for_each(reader, "rejected", [&](ObjectReader& r) {
    const std::string equation = r.text("equation", "");
    plan.rejected.push_back(
        {r.text("family", ""),
         r.text("constraint", "") + (equation.empty() ? "" : fmt::format(" ({})", equation)),
         r.text("smallest_change", "")});
  });
}

// A strategy's own record: the only row.
void parse_single(ObjectReader& reader, PlanDocument& plan) {
  plan.ranked.push_back(parse_plan_row(reader));
  if (const Json* mesh = reader.object("mesh")) {
    ObjectReader axes(*mesh, "mesh", reader.problems());
    plan.num_devices = axes.integer("pp", 1, 1 << 24, 1) * axes.integer("dp", 1, 1 << 24, 1) *
                       axes.integer("tp", 1, 1 << 10, 1) * axes.integer("cp", 1, 1 << 10, 1);
  }
  if (const Json* predicted = reader.object("predicted")) {
    ObjectReader values(*predicted, "predicted", reader.problems());
    plan.trainer = values.text(values.has("stack") ? "stack" : "trainer", "");
    parse_insight(values, plan);
  }
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

PlanDocument parse_plan_document(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  PlanDocument plan{.model = name_of(reader, "model"),
                    .cluster = name_of(reader, "cluster"),
                    .trainer = reader.text(reader.has("stack") ? "stack" : "trainer", ""),
                    .precision = reader.text("precision", ""),
                    .num_devices = count(reader, "num_devices"),
                    .sequence = count(reader, "sequence"),
                    .global_batch_sequences = count(reader, "global_batch_sequences"),
                    .num_considered = count(reader, "num_considered"),
                    .notes = texts(reader, "notes")};
  parse_defaults(reader, plan);
  if (reader.has("strategies")) {
    parse_rivals(reader, plan);
    parse_insight(reader, plan);
  } else if (reader.has("mesh")) {
    parse_single(reader, plan);
  } else if (problems.empty()) {
    problems.add("strategies",
                 "is missing: neither a plan (piper plan --json) nor a strategy (--out)");
  }
  problems.finish();
  return plan;
}

}  // namespace piper::report
