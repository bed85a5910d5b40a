#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/strategy/strategy.h>

namespace piper::strategy {
namespace {

template <class Enum>
Enum choose(ObjectReader& reader, const std::string& key, const std::vector<Enum>& values) {
  std::vector<std::string> names;
  for (const Enum value : values) names.push_back(name(value));
  const std::string chosen = reader.choice(key, names);
  for (const Enum value : values)
    if (chosen == name(value)) return value;
  return values.front();
}

std::vector<std::string> recompute_names() {
  std::vector<std::string> names;
  for (const Recompute recompute : kRecomputes) names.emplace_back(name(recompute));
  names.insert(names.end(), {"norm", "all"});
  return names;
}

void read_mesh(ObjectReader& reader, Mesh& mesh) {
  const Json& json = reader.raw("mesh");
  if (json.is_null()) {
    reader.problem("mesh", "is missing");
    return;
  }
  ObjectReader axes(json, "mesh", reader.problems());
  mesh.pp = axes.integer("pp", 1, kMaxCount);
  mesh.ep = axes.integer("ep", 1, kMaxCount);
  mesh.dp = axes.integer("dp", 1, kMaxCount);
  const int64_t edp = axes.integer("edp", 1, kMaxCount, 0);
  if (edp != 0 && mesh.dp % mesh.ep == 0 && edp != mesh.edp())
    axes.problem("edp", fmt::format("is {}; allowed: 'mesh.dp' / 'mesh.ep' = {} / {} = {}", edp,
                                    mesh.dp, mesh.ep, mesh.edp()));
  axes.refuse_unknown();
}

void read_numbers(ObjectReader& reader, Strategy& s) {
  read_mesh(reader, s.mesh);
  if (reader.has("layers_per_stage"))
    s.layers_per_stage = reader.integers("layers_per_stage", 1, kMaxCount);
  else
    reader.problem("layers_per_stage", "is missing");
  reader.ignore("layers_per_stage");
  s.sequence = reader.integer("sequence", 1, int64_t{1} << 32);
  s.global_batch_sequences = reader.integer("global_batch_sequences", 1, kMaxCount * kMaxCount);
  s.micro_batch_sequences = reader.integer("micro_batch_sequences", 1, kMaxCount);
  s.num_micro_batches = reader.integer("num_micro_batches", 1, kMaxCount);
  s.mtp_depth = reader.integer("mtp_depth", 0, model::kMaxMtpDepth, 0);
}

// Both keys or neither.
void read_capacity(ObjectReader& reader, Capacity& capacity) {
  reader.ignore("capacity_factor");
  reader.ignore("drop");
  if (reader.has("capacity_factor")) {
    capacity.factor =
        reader.number("capacity_factor", kLeastCapacityFactor, kLargestCapacityFactor);
    capacity.drop = choose(reader, "drop", std::vector{Drop::kProbability, Drop::kPosition});
  } else if (reader.has("drop")) {
    reader.problem("drop", "is given without 'capacity_factor'; allowed: both or neither");
  }
}

// Whether the numbers were all there: what stands in for a missing one must not be checked against
// the others.
bool numbers_are_sound(const Json& json) {
  Problems problems("");
  ObjectReader reader(json, "", &problems);
  Strategy scratch;
  read_numbers(reader, scratch);
  return problems.empty();
}

}  // namespace

const char* name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "gpipe";
    case PipelineSchedule::k1F1B:
      return "1f1b";
  }
  return "?";
}

const char* name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kAttention:
      return "attention";
    case Recompute::kExperts:
      return "experts";
    case Recompute::kAttentionAndExperts:
      return "attention+experts";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

std::optional<Recompute> recompute_from(std::string_view text) {
  if (text == "norm") return Recompute::kNone;
  if (text == "all") return Recompute::kFull;
  for (const Recompute recompute : kRecomputes)
    if (text == name(recompute)) return recompute;
  return std::nullopt;
}

const char* name(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp64:
      return "fp64";
  }
  return "?";
}

std::vector<int64_t> even_split(int64_t layers, int64_t pp) {
  PIPER_CHECK(pp >= 1 && pp <= layers, "even_split needs 1 <= pp <= layers");
  std::vector<int64_t> split(pp, layers / pp);
  int64_t left = layers % pp;
  for (int64_t stage = pp - 2; stage > 0 && left > 0; --stage, --left) ++split[stage];
  if (left > 0) ++split[pp - 1];
  return split;
}

Json to_json(const Strategy& s) {
  Json json;
  json["model"] = s.model;
  json["cluster"] = s.cluster;
  json["mesh"] = {{"pp", s.mesh.pp}, {"ep", s.mesh.ep}, {"dp", s.mesh.dp}, {"edp", s.mesh.edp()}};
  json["layers_per_stage"] = s.layers_per_stage;
  json["schedule"] = name(s.schedule);
  json["recompute"] = name(s.recompute);
  json["precision"] = name(s.precision);
  json["sequence"] = s.sequence;
  json["global_batch_sequences"] = s.global_batch_sequences;
  json["micro_batch_sequences"] = s.micro_batch_sequences;
  json["num_micro_batches"] = s.num_micro_batches;
  if (s.capacity.is_limited()) {
    json["capacity_factor"] = s.capacity.factor;
    json["drop"] = name(s.capacity.drop);
  }
  if (s.mtp_depth > 0) json["mtp_depth"] = s.mtp_depth;
  if (!s.predicted.is_null()) json["predicted"] = s.predicted;
  return json;
}

Strategy parse_strategy(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  Strategy s;
  s.model = reader.text("model", "");
  s.cluster = reader.text("cluster", "");
  read_numbers(reader, s);
  s.schedule =
      choose(reader, "schedule", std::vector{PipelineSchedule::kGPipe, PipelineSchedule::k1F1B});
  s.recompute = recompute_from(reader.choice("recompute", recompute_names())).value_or(s.recompute);
  s.precision = choose(reader, "precision",
                       std::vector{Precision::kFp32, Precision::kBf16, Precision::kFp64});
  read_capacity(reader, s.capacity);
  if (const Json* predicted = reader.object("predicted")) s.predicted = *predicted;
  reader.refuse_unknown();
  if (json.is_object() && numbers_are_sound(json))
    for (const std::string& line : contradictions(s)) problems.add(line);
  problems.finish();
  return s;
}

}  // namespace piper::strategy
