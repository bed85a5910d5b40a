#include <embedded/trainers.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/suggest.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/cost/trainer/trainer_rules.h>

#include <optional>

namespace piper::cost {
namespace {

constexpr double kMostBytes = 1e12;

CalibrationRow read_row(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  CalibrationRow row;
  row.source = reader.text("source");
  row.model = reader.text("model");
  row.gpus = reader.integer("gpus", 1, 1'000'000);
  row.tp = reader.integer("tp", 1, 1'000'000);
  row.pp = reader.integer("pp", 0, 1'000'000, 0);
  row.micro_batch = reader.integer("micro_batch", 0, 1'000'000, 0);
  row.measured_value = reader.number("measured_value", 0, kMostBytes);
  reader.refuse_unknown();
  return row;
}

Calibration read_calibration(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  Calibration c;
  c.compute_efficiency = reader.number("compute_efficiency", 0.01, 10);
  c.source = reader.text("source");
  if (const Json* rows = reader.array("rows"))
    for (size_t i = 0; i < rows->size(); ++i)
      c.rows.push_back(read_row((*rows)[i], fmt::format("{}.rows[{}]", path, i), problems));
  reader.refuse_unknown();
  return c;
}

DividedState read_state(ObjectReader& reader, const std::string& key) {
  const std::vector<double> pair = reader.numbers(key, 0, 64);
  if (pair.size() != 2) {
    reader.problem(key, "has not two entries; allowed: [replicated bytes, sharded bytes]");
    return {};
  }
  return {pair[0], pair[1]};
}

// Words of an enumeration, as its traits name them.
template <HasTraits Enum>
std::vector<Enum> read_words(ObjectReader& reader, const char* key) {
  std::vector<Enum> found;
  const Json* list = reader.array(key);
  if (list == nullptr) return found;
  for (const Json& word : *list) {
    const std::optional<Enum> value =
        word.is_string() ? find_by_name<Enum>(word.get<std::string>()) : std::nullopt;
    if (value)
      found.push_back(*value);
    else
      reader.problem(
          key, fmt::format("has {}; allowed: {}", word.dump(), fmt::join(names_of<Enum>(), ", ")));
  }
  return found;
}

Offers read_offers(const Json& json, Problems* problems) {
  ObjectReader reader(json, "runs", problems);
  Offers o{.schedules = read_words<strategy::PipelineSchedule>(reader, "schedules"),
           .offloads = read_words<strategy::Offload>(reader, "offloads"),
           .offloads_checkpoints_only = reader.boolean("offloads_checkpoints_only", false),
           .recomputes = read_words<strategy::Recompute>(reader, "recomputes"),
           .recompute_by_stage = reader.boolean("recompute_by_stage", true)};
  for (const auto& [key, stages] :
       {std::pair{"zero", &o.zero}, {"zero_in_pipelines", &o.zero_in_pipelines}})
    if (reader.has(key))
      for (const double stage : reader.numbers(key, 0, 3))
        stages->push_back(static_cast<int64_t>(stage));
  const std::string words = reader.text("expert_tensor", "any");
  if (words == "one")
    o.expert_tensor = Offers::ExpertTensor::kOne;
  else if (words == "one or tp")
    o.expert_tensor = Offers::ExpertTensor::kOneOrTensor;
  else if (words != "any")
    reader.problem("expert_tensor", fmt::format("is '{}'; allowed: any, one or tp, one", words));
  reader.refuse_unknown();
  return o;
}

void read_memory(ObjectReader& reader, TrainerProfile& s) {
  if (const Json* state = reader.object("state_bytes")) {
    ObjectReader bytes(*state, "state_bytes", reader.problems());
    for (int zero = 0; zero < 4; ++zero)
      s.state[static_cast<size_t>(zero)] = read_state(bytes, fmt::format("zero{}", zero));
    s.state_alone = bytes.number("alone", 1, 64);
    s.state_zero3_pipelined = s.state[3];
    s.keeps_weights_in_pipelines = bytes.has("zero3_pipelined");
    if (s.keeps_weights_in_pipelines)
      s.state_zero3_pipelined = read_state(bytes, "zero3_pipelined");
    bytes.ignore("zero3_pipelined");
    bytes.refuse_unknown();
  } else {
    reader.problem("state_bytes", "is missing");
  }
  s.keeps_rotary_inputs = reader.boolean("keeps_rotary_inputs", s.keeps_rotary_inputs);
  s.gathered_buffers = reader.number("gathered_buffers", 0, 64, s.gathered_buffers);
  s.selective_kept_part = reader.number("selective_kept_part", 0, 1, s.selective_kept_part);
  s.keeps_gate_output = reader.boolean("keeps_gate_output", s.keeps_gate_output);
  s.logit_bytes_kept = reader.number("logit_bytes_kept", 0, 64, s.logit_bytes_kept);
  s.keeps_weight_placeholders =
      reader.boolean("keeps_weight_placeholders", s.keeps_weight_placeholders);
  s.recomputes_scores_only = reader.boolean("recomputes_scores_only", s.recomputes_scores_only);
  s.fixed_bytes = reader.number("fixed_bytes", 0, kMostBytes, s.fixed_bytes);
  s.reports_states_only = reader.boolean("reports_states_only", s.reports_states_only);
  s.reported_bytes = reader.number("reported_bytes", 0, kMostBytes, s.reported_bytes);
  s.unusable_part = reader.number("unusable_part", 0, 0.5, s.unusable_part);
}

void read_time(ObjectReader& reader, TrainerProfile& s) {
  s.host_seconds_per_layer =
      reader.number("host_seconds_per_layer", 0, 1, s.host_seconds_per_layer);
  s.host_seconds_per_mixture_layer =
      reader.number("host_seconds_per_mixture_layer", 0, 1, s.host_seconds_per_mixture_layer);
  s.serial_seconds_per_layer =
      reader.number("serial_seconds_per_layer", 0, 1, s.serial_seconds_per_layer);
  s.division_bytes = reader.number("division_bytes", 0, 1000, s.division_bytes);
  s.optimizer_copy_bytes = reader.number("optimizer_copy_bytes", 0, 1000, s.optimizer_copy_bytes);
  s.division_seconds_per_replica =
      reader.number("division_seconds_per_replica", 0, 1, s.division_seconds_per_replica);
  s.seconds_per_message = reader.number("seconds_per_message", 0, 1, s.seconds_per_message);
  s.fuses_sinks = reader.boolean("fuses_sinks", s.fuses_sinks);
  s.fused_attention = reader.boolean("fused_attention", s.fused_attention);
  s.softmax_passes = reader.number("softmax_passes", 0, 100, s.softmax_passes);
  s.dropout = reader.boolean("dropout", s.dropout);
  s.logit_bytes = reader.number("logit_bytes", 0, 1000, s.logit_bytes);
  s.grouped_efficiency = reader.number("grouped_efficiency", 0.01, 1, s.grouped_efficiency);
  s.mixture_passes = reader.number("mixture_passes", 0, 10, s.mixture_passes);
  s.recomputes_finely = reader.boolean("recomputes_finely", s.recomputes_finely);
  s.interleaves = reader.boolean("interleaves", s.interleaves);
  s.splits_by_parameters = reader.boolean("splits_by_parameters", s.splits_by_parameters);
  s.counts_all_pairs = reader.boolean("counts_all_pairs", s.counts_all_pairs);
  s.hidden_gradients = reader.number("hidden_gradients", 0, 1, s.hidden_gradients);
  s.hidden_tensor = reader.number("hidden_tensor", 0, 1, s.hidden_tensor);
  s.hidden_messages = reader.number("hidden_messages", 0, 1, s.hidden_messages);
  s.hidden_exchange = reader.number("hidden_exchange", 0, 1, s.hidden_exchange);
  s.deduplicates_rows = reader.boolean("deduplicates_rows", s.deduplicates_rows);
  s.chooses_exchange = reader.boolean("chooses_exchange", s.chooses_exchange);
  s.schedules_mixtures = reader.boolean("schedules_mixtures", s.schedules_mixtures);
  s.dispatch_element_bytes =
      reader.number("dispatch_element_bytes", 1, 4, s.dispatch_element_bytes);
  s.gathers_twice = reader.boolean("gathers_twice", s.gathers_twice);
  s.reduction_bytes = reader.number("reduction_bytes", 1, 8, s.reduction_bytes);
}

}  // namespace

const Calibration& TrainerProfile::calibration_of(const std::string& device) const {
  const auto found = calibrations.find(device);
  return found == calibrations.end() ? calibration : found->second;
}

TrainerProfile parse_trainer(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  TrainerProfile s;
  s.name = reader.text("name");
  s.description = reader.text("description", "");
  s.use = reader.text("use", "");
  if (const Json* published = reader.object("published")) {
    ObjectReader of(*published, "published", &problems);
    s.published = {of.integer("rows", 1, 1'000'000), of.number("median_error", 0, 100),
                   of.text("of", "")};
    of.refuse_unknown();
  }
  if (const Json* all = reader.object("calibration"))
    s.calibration = read_calibration(*all, "calibration", &problems);
  if (const Json* by_device = reader.object("calibration_by_device"))
    for (const auto& [device, entry] : by_device->items())
      s.calibrations[device] =
          read_calibration(entry, "calibration_by_device." + device, &problems);
  if (const Json* runs = reader.object("runs")) s.offers = read_offers(*runs, &problems);
  const std::string rules = reader.text("rules", "");
  read_time(reader, s);
  read_memory(reader, s);
  reader.refuse_unknown();
  problems.finish();
  if (!rules.empty()) s.rules = std::make_shared<const TrainerRules>(load_rules(rules));
  return s;
}

std::vector<std::string> builtin_trainers() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded::trainers()) names.emplace_back(file.name);
  std::ranges::sort(names);
  return names;
}

TrainerProfile load_trainer(const std::string& name_or_path) {
  for (const EmbeddedFile& file : embedded::trainers())
    if (file.name == name_or_path) {
      const std::string source = fmt::format("built-in trainer {}", file.name);
      return parse_trainer(parse_json(file.text, source), source);
    }
  if (name_or_path == kStandardInput || name_or_path.ends_with(".json"))
    return parse_trainer(read_json_input(name_or_path), name_or_path);
  throw InvalidInput(fmt::format("trainer '{}' is not known; allowed: a file or one of {}{}",
                                 name_or_path, fmt::join(builtin_trainers(), ", "),
                                 did_you_mean(name_or_path, builtin_trainers())));
}

}  // namespace piper::cost
