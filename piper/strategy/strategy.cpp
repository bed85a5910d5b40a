#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/strategy.h>

namespace piper::strategy {
namespace {

template <HasTraits Enum>
Enum choose(ObjectReader& reader, const std::string& key) {
  return find_by_name<Enum>(reader.choice(key, names_of<Enum>())).value_or(Enum{});
}

std::vector<std::string> recompute_names() {
  std::vector<std::string> names = names_of<Recompute>();
  names.insert(names.end(), {"norm", "all"});
  return names;
}

std::string derived_edp(const Mesh& m) {
  if (m.tp * m.cp * m.etp == 1)
    return fmt::format("'mesh.dp' / 'mesh.ep' = {} / {} = {}", m.dp, m.ep, m.edp());
  return fmt::format("tp x cp x dp / (ep x etp) = {} x {} x {} / ({} x {}) = {}", m.tp, m.cp, m.dp,
                     m.ep, m.etp, m.edp());
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
  mesh.vpp = axes.integer("vpp", 1, kMaxDegree, 1);
  mesh.etp = axes.integer("etp", 1, kMaxDegree, 1);
  mesh.tp = axes.integer("tp", 1, kMaxDegree, 1);
  mesh.cp = axes.integer("cp", 1, kMaxDegree, 1);
  const int64_t edp = axes.integer("edp", 1, kMaxCount, 0);
  if (edp != 0 && mesh.ranks_per_stage() % (mesh.ep * mesh.etp) == 0 && edp != mesh.edp())
    axes.problem("edp", fmt::format("is {}; allowed: {}", edp, derived_edp(mesh)));
  axes.refuse_unknown();
}

void read_numbers(ObjectReader& reader, Strategy& s) {
  read_mesh(reader, s.mesh);
  if (reader.has("layers_per_stage"))
    s.layers_per_stage = reader.integers("layers_per_stage", 0, kMaxCount);
  else
    reader.problem("layers_per_stage", "is missing");
  reader.ignore("layers_per_stage");
  s.sequence = reader.integer("sequence", 1, int64_t{1} << 32);
  s.global_batch_sequences = reader.integer("global_batch_sequences", 1, kMaxCount * kMaxCount);
  s.micro_batch_sequences = reader.integer("micro_batch_sequences", 1, kMaxCount);
  s.num_micro_batches = reader.integer("num_micro_batches", 1, kMaxCount);
  s.mtp_depth = reader.integer("mtp_depth", 0, model::kMaxMtpDepth, 0);
  s.zero = reader.integer("zero", 0, 3, 0);
}

// The first two keys or none; the third with them.
void read_capacity(ObjectReader& reader, Capacity& capacity) {
  reader.ignore("capacity_factor");
  reader.ignore("drop");
  if (reader.has("capacity_factor")) {
    capacity.factor =
        reader.number("capacity_factor", kLeastCapacityFactor, kLargestCapacityFactor);
    capacity.drop = choose<Drop>(reader, "drop");
  } else if (reader.has("drop")) {
    reader.problem("drop", "is given without 'capacity_factor'; allowed: both or neither");
  }
  capacity.pads = reader.boolean("pad_to_capacity", false);
}

template <HasTraits Enum>
Enum choose_or_first(ObjectReader& reader, const std::string& key) {
  reader.ignore(key);
  return reader.has(key) ? choose<Enum>(reader, key) : Enum{};
}

void read_recompute_per_stage(ObjectReader& reader, std::vector<Recompute>& per_stage) {
  const Json* array = reader.array("recompute_per_stage");
  if (array == nullptr) return;
  for (size_t i = 0; i < array->size(); ++i) {
    const Json& entry = (*array)[i];
    const auto chosen = entry.is_string() ? recompute_from(entry.get<std::string>()) : std::nullopt;
    if (!chosen)
      reader.problem(
          fmt::format("recompute_per_stage[{}]", i),
          fmt::format("is {}; allowed: {}", quote(entry), fmt::join(recompute_names(), ", ")));
    per_stage.push_back(chosen.value_or(Recompute::kNone));
  }
}

// What is not done when it is left out, and what has a first choice.
void read_options(ObjectReader& reader, Strategy& s) {
  s.sequence_parallel = reader.boolean("sequence_parallel", false);
  s.offload = choose_or_first<Offload>(reader, "offload");
  s.placement = choose_or_first<Placement>(reader, "placement");
  s.all_to_all = choose_or_first<AllToAll>(reader, "all_to_all");
  s.all_to_all_chunk_bytes = reader.integer("all_to_all_chunk_bytes", 0, int64_t{1} << 40, 0);
  s.reduction = choose_or_first<Reduction>(reader, "reduction");
  s.reduction_start = choose_or_first<ReductionStart>(reader, "reduction_start");
  s.context_exchange = choose_or_first<ContextExchange>(reader, "context_exchange");
  s.moe_schedule = choose_or_first<MoeSchedule>(reader, "moe_schedule");
  s.moe_chunks = reader.integer("moe_chunks", 1, kMaxMoeChunks, 1);
  s.redundant_experts = reader.integer("redundant_experts", 0, kMaxCount, 0);
  s.expert_compression = reader.integer("expert_compression", 1, kMostExpertCompression, 1);
  read_recompute_per_stage(reader, s.recompute_per_stage);
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

std::optional<Recompute> recompute_from(std::string_view text) {
  if (text == "norm") return Recompute::kNone;
  if (text == "all") return Recompute::kFull;
  return find_by_name<Recompute>(text);
}

int64_t first_layer(const Strategy& strategy, int64_t stage) {
  PIPER_CHECK(stage >= 0 && stage <= static_cast<int64_t>(strategy.layers_per_stage.size()),
              "stage outside the pipeline");
  int64_t first = 0;
  for (int64_t s = 0; s < stage; ++s) first += strategy.layers_per_stage[static_cast<size_t>(s)];
  return first;
}

std::vector<int64_t> even_split(int64_t layers, int64_t pp) {
  PIPER_CHECK(pp >= 1 && pp <= layers, "even_split needs 1 <= pp <= layers");
  std::vector<int64_t> split(pp, layers / pp);
  int64_t left = layers % pp;
  for (int64_t stage = pp - 2; stage > 0 && left > 0; --stage, --left) ++split[stage];
  if (left > 0) ++split[pp - 1];
  return split;
}

int64_t layers_that_make(int64_t num_stages, int64_t layers) {
  const int64_t of_a_stage = (layers + num_stages - 1) / num_stages;
  return (layers + of_a_stage - 1) / of_a_stage == num_stages ? of_a_stage : 0;
}

namespace {

// Degrees of one that a file may leave out are left out.
Json mesh_json(const Mesh& m) {
  Json json{{"pp", m.pp}, {"ep", m.ep}, {"dp", m.dp}};
  for (const auto& [key, degree] :
       {std::pair{"vpp", m.vpp}, {"etp", m.etp}, {"tp", m.tp}, {"cp", m.cp}})
    if (degree != 1) json[key] = degree;
  json["edp"] = m.edp();
  return json;
}

void write_options(const Strategy& s, Json& json) {
  if (!s.recompute_per_stage.empty()) {
    json["recompute_per_stage"] = Json::array();
    for (const Recompute recompute : s.recompute_per_stage)
      json["recompute_per_stage"].push_back(name(recompute));
  }
  if (s.zero > 0) json["zero"] = s.zero;
  if (s.sequence_parallel) json["sequence_parallel"] = true;
  if (s.offload != Offload::kNone) json["offload"] = name(s.offload);
  if (s.placement != Placement::kDataInside) json["placement"] = name(s.placement);
  if (s.all_to_all != AllToAll::kFlat) json["all_to_all"] = name(s.all_to_all);
  if (s.all_to_all_chunk_bytes > 0) json["all_to_all_chunk_bytes"] = s.all_to_all_chunk_bytes;
  if (s.reduction != Reduction::kDirect) json["reduction"] = name(s.reduction);
  if (s.reduction_start != ReductionStart::kReady)
    json["reduction_start"] = name(s.reduction_start);
  if (s.context_exchange != ContextExchange::kRing)
    json["context_exchange"] = name(s.context_exchange);
  if (s.moe_schedule != MoeSchedule::kPlain) json["moe_schedule"] = name(s.moe_schedule);
  if (s.moe_chunks > 1) json["moe_chunks"] = s.moe_chunks;
  if (s.redundant_experts > 0) json["redundant_experts"] = s.redundant_experts;
  if (s.expert_compression > 1) json["expert_compression"] = s.expert_compression;
}

}  // namespace

Json to_json(const Strategy& s) {
  Json json;
  json["model"] = s.model;
  json["cluster"] = s.cluster;
  json["mesh"] = mesh_json(s.mesh);
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
  if (s.capacity.pads) json["pad_to_capacity"] = true;
  if (s.mtp_depth > 0) json["mtp_depth"] = s.mtp_depth;
  write_options(s, json);
  if (s.predicted) json["predicted"] = *s.predicted;
  return json;
}

Strategy parse_strategy(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  Strategy s;
  s.model = reader.text("model", "");
  s.cluster = reader.text("cluster", "");
  read_numbers(reader, s);
  s.schedule = choose<PipelineSchedule>(reader, "schedule");
  s.recompute = recompute_from(reader.choice("recompute", recompute_names())).value_or(s.recompute);
  s.precision = choose<Precision>(reader, "precision");
  read_capacity(reader, s.capacity);
  read_options(reader, s);
  if (const Json* predicted = reader.object("predicted"))
    s.predicted = std::make_shared<const Json>(*predicted);
  reader.refuse_unknown();
  if (json.is_object() && numbers_are_sound(json))
    for (const Contradiction& c : contradictions(s)) problems.add(c.text);
  problems.finish();
  return s;
}

}  // namespace piper::strategy
