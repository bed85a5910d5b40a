#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/suggest.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/estimator.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <piper/plan/search.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <numeric>

namespace piper::cli {
namespace {

using strategy::PipelineSchedule;
using strategy::Precision;
using strategy::Recompute;
using strategy::Strategy;

constexpr int64_t kMost = int64_t{1} << 24;

std::vector<std::string> axes_given(const StrategyFlags& f) {
  std::vector<std::string> given;
  const auto note = [&](const char* flag, bool is_given) {
    if (is_given) given.emplace_back(flag);
  };
  note("--pp", f.pp.has_value());
  note("--ep", f.ep.has_value());
  note("--dp", f.dp.has_value());
  note("--micro-batch", f.micro_batch_sequences.has_value());
  note("--num-micro-batches", f.num_micro_batches.has_value());
  note("--sequence", f.sequence.has_value());
  note("--global-batch", f.global_batch_sequences.has_value());
  note("--layers-per-stage", !f.layers_per_stage.empty());
  note("--schedule", !f.schedule.empty());
  note("--recompute", !f.recompute.empty());
  note("--precision", !f.precision.empty());
  note("--capacity-factor", f.capacity_factor.has_value());
  note("--drop", !f.drop.empty());
  note("--pad-to-capacity", f.pad_to_capacity);
  note("--tp", f.tp.has_value());
  note("--cp", f.cp.has_value());
  note("--etp", f.etp.has_value());
  note("--vpp", f.vpp.has_value());
  note("--zero", f.zero.has_value());
  note("--sequence-parallel", f.sequence_parallel);
  note("--offload", !f.offload.empty());
  note("--placement", !f.placement.empty());
  note("--all-to-all", !f.all_to_all.empty());
  note("--all-to-all-chunk", f.all_to_all_chunk_bytes.has_value());
  note("--reduction", !f.reduction.empty());
  note("--reduction-start", !f.reduction_start.empty());
  note("--context-exchange", !f.context_exchange.empty());
  note("--moe-schedule", !f.moe_schedule.empty());
  note("--moe-chunks", f.moe_chunks.has_value());
  note("--redundant-experts", f.redundant_experts.has_value());
  note("--expert-compression", f.expert_compression.has_value());
  return given;
}

std::vector<std::string> contradictions_with_modules(const Strategy& s, const model::Model& model,
                                                     strategy::NameOfKey name_of) {
  const bool sound = s.mtp_depth >= 0 && s.mtp_depth <= model::kMaxMtpDepth;
  return strategy::texts_of(
      strategy::contradictions(s, sound ? model::with_mtp(model, s.mtp_depth) : model, name_of));
}

// A config.json and a built-in name one architecture differently.
bool is_same_architecture(const Strategy& s, const model::Model& model) {
  const int64_t layers =
      std::accumulate(s.layers_per_stage.begin(), s.layers_per_stage.end(), int64_t{0});
  return s.predicted &&
         noted_parameters({{"predicted", *s.predicted}}) ==
             model::count_parameters(model).total() &&
         layers == model.num_layers();
}

Strategy from_file(const StrategyFlags& f, const model::Model& model) {
  std::vector<std::string> problems;
  for (const std::string& flag : axes_given(f))
    problems.push_back(fmt::format(
        "{} beside --strategy {}: the file already says it; give one of them", flag, f.strategy));
  if (f.strategy != kStandardInput && !std::filesystem::exists(f.strategy))
    problems.push_back(fmt::format("--strategy {}: no such file", f.strategy));
  if (!problems.empty()) throw InvalidInput(problems);
  Strategy strategy = strategy::parse_strategy(read_json_input(f.strategy), f.strategy);
  Problems contradictions(f.strategy);
  if (f.mtp_depth && strategy.mtp_depth != 0 && *f.mtp_depth != strategy.mtp_depth)
    contradictions.add(
        "mtp_depth", fmt::format("is {}, but --mtp-depth is {}", strategy.mtp_depth, *f.mtp_depth));
  strategy.mtp_depth = f.mtp_depth.value_or(strategy.mtp_depth);
  if (!f.model.empty() && !strategy.model.empty() && strategy.model != model.name &&
      !is_same_architecture(strategy, model))
    contradictions.add("model",
                       fmt::format("is '{}', but --model is '{}'", strategy.model, model.name));
  for (const std::string& line : contradictions_with_modules(strategy, model, strategy::quoted))
    contradictions.add(line);
  contradictions.finish();
  return strategy;
}

// The count of micro-batches, and with it the batch.
void settle_batch(const StrategyFlags& f, Strategy& s) {
  const int64_t per_micro_batch = s.mesh.dp * s.micro_batch_sequences;
  s.num_micro_batches = f.num_micro_batches.value_or(s.mesh.pp > 1 ? 2 * s.mesh.pp : 1);
  s.global_batch_sequences = per_micro_batch * s.num_micro_batches;
  if (!f.global_batch_sequences) return;
  const int64_t batch = *f.global_batch_sequences;
  if (f.num_micro_batches ? batch != s.global_batch_sequences : batch % per_micro_batch != 0)
    throw InvalidInput(fmt::format(
        "--global-batch is {}; allowed: dp x micro-batch x count = {} x {} x {}, such as {}", batch,
        s.mesh.dp, s.micro_batch_sequences,
        f.num_micro_batches ? std::to_string(*f.num_micro_batches) : "any",
        f.num_micro_batches
            ? s.global_batch_sequences
            : std::max(per_micro_batch, batch / per_micro_batch * per_micro_batch)));
  s.global_batch_sequences = batch;
  s.num_micro_batches = batch / per_micro_batch;
}

// On a machine that was profiled without the default precision, the precision that it has figures
// for.
Precision precision_without_flag(const StrategyFlags& f) {
  if (f.cluster.empty()) return f.default_precision;
  const cluster::Cluster cluster = cluster::load_cluster(f.cluster);
  if (cluster.kind == "gpu") return f.default_precision;
  for (const Precision p :
       {f.default_precision, Precision::kFp32, Precision::kBf16, Precision::kFp64})
    if (cluster.compute.contains(strategy::name(p))) return p;
  return f.default_precision;
}

Strategy from_axes(const StrategyFlags& f, const model::Model& model) {
  Strategy s{.model = model.name, .cluster = f.cluster};
  s.mesh.pp = f.pp.value_or(1);
  s.mesh.ep = f.ep.value_or(1);
  s.mesh.tp = f.tp.value_or(1);
  s.mesh.cp = f.cp.value_or(1);
  s.mesh.etp = f.etp.value_or(1);
  const int64_t others = s.mesh.ranks_per_sequence();
  s.mesh.dp = f.dp.value_or(std::max<int64_t>(1, s.mesh.ranks_per_expert_set() / others));
  s.zero = f.zero.value_or(0);
  s.sequence_parallel = f.sequence_parallel;
  if (!f.offload.empty()) s.offload = parse_word<strategy::Offload>("--offload", f.offload);
  if (!f.placement.empty())
    s.placement = parse_word<strategy::Placement>("--placement", f.placement);
  if (!f.all_to_all.empty())
    s.all_to_all = parse_word<strategy::AllToAll>("--all-to-all", f.all_to_all);
  s.all_to_all_chunk_bytes = f.all_to_all_chunk_bytes.value_or(0);
  if (!f.reduction.empty())
    s.reduction = parse_word<strategy::Reduction>("--reduction", f.reduction);
  if (!f.reduction_start.empty())
    s.reduction_start =
        parse_word<strategy::ReductionStart>("--reduction-start", f.reduction_start);
  if (!f.context_exchange.empty())
    s.context_exchange =
        parse_word<strategy::ContextExchange>("--context-exchange", f.context_exchange);
  if (!f.moe_schedule.empty())
    s.moe_schedule = parse_word<strategy::MoeSchedule>("--moe-schedule", f.moe_schedule);
  s.moe_chunks = f.moe_chunks.value_or(1);
  s.redundant_experts = f.redundant_experts.value_or(0);
  s.expert_compression = f.expert_compression.value_or(1);
  s.schedule = f.schedule.empty() ? PipelineSchedule::k1F1B
                                  : parse_word<PipelineSchedule>("--schedule", f.schedule);
  s.mesh.vpp = f.vpp.value_or(strategy::is_v(s.schedule) ? 2 : 1);
  s.recompute = f.recompute.empty() ? Recompute::kNone : parse_recompute(f.recompute);
  if (!f.drop.empty() && !f.capacity_factor)
    throw InvalidInput(fmt::format(
        "--drop is '{}', but nothing is dropped without --capacity-factor; give both or neither",
        f.drop));
  s.capacity.factor = f.capacity_factor.value_or(0);
  if (!f.drop.empty()) s.capacity.drop = parse_word<strategy::Drop>("--drop", f.drop);
  s.capacity.pads = f.pad_to_capacity;
  s.precision = f.precision.empty() ? precision_without_flag(f)
                                    : parse_word<Precision>("--precision", f.precision);
  const int64_t fallback = model.max_positions > 0
                               ? std::min(f.default_sequence, model.max_positions)
                               : f.default_sequence;
  s.sequence = f.sequence.value_or(fallback);
  s.micro_batch_sequences = f.micro_batch_sequences.value_or(1);
  s.mtp_depth = f.mtp_depth.value_or(0);
  if (s.mesh.num_virtual_stages() > model.num_layers())
    throw InvalidInput(
        s.mesh.vpp > 1
            ? fmt::format(
                  "--pp x --vpp is {} x {}; allowed: a product of at most {}, the layers of {}",
                  s.mesh.pp, s.mesh.vpp, model.num_layers(), model.name)
            : fmt::format("--pp is {}; allowed: 1 to {}, the layers of {}", s.mesh.pp,
                          model.num_layers(), model.name));
  s.layers_per_stage = f.layers_per_stage.empty()
                           ? strategy::even_split(model.num_layers(), s.mesh.num_virtual_stages())
                           : f.layers_per_stage;
  settle_batch(f, s);
  if (const auto problems = contradictions_with_modules(s, model, flag_of); !problems.empty())
    throw InvalidInput(problems);
  return s;
}

// What --model could be for a plan whose model came from a file.
std::string models_like(const Json& plan) {
  std::string own = "the config.json that it was planned from, or its folder";
  const int64_t parameters = noted_parameters(plan);
  for (const std::string& name : model::builtin_models())
    if (parameters > 0 && model::count_parameters(model::load_model(name)).total() == parameters)
      return fmt::format("{} (a built-in with as many parameters), or {}", name, own);
  return own;
}

}  // namespace

void add_strategy_flags(Subcommand command, StrategyFlags& f, ModelFlag model) {
  const Check count = integer_in(1, kMost);
  if (model != ModelFlag::kNone) {
    command.add_option(
        "--model", f.model,
        "built-in name, config.json, or a folder holding one (the one that --strategy "
        "names)");
    add_ignore_flag(command, f.ignore);
    command.add_option("--cluster", f.cluster,
                       "built-in name or file (what `piper profile --out` wrote)");
  }
  command.add_option("--strategy", f.strategy,
                     "file that `piper plan --out` wrote; or give its axes:");
  command.add_option("--pp", f.pp, "pipeline stages (1)").check(count);
  command.add_option("--ep", f.ep, "ranks that share a layer's experts (1)").check(count);
  command.add_option("--dp", f.dp, "ranks of a stage, a multiple of ep (ep)").check(count);
  command.add_option("--micro-batch", f.micro_batch_sequences, "sequences of a rank at a time (1)")
      .check(count);
  command
      .add_option("--num-micro-batches", f.num_micro_batches,
                  "of a rank and step (2 pp; 1 without a pipeline)")
      .check(count);
  command.add_option("--global-batch", f.global_batch_sequences, "sequences of a step (follows)")
      .check(count);
  command.add_option("--sequence", f.sequence, "tokens of a sequence; 128K is 131072")
      .takes_suffixes()
      .check(integer_in(1, int64_t{1} << 32));
  command.add_option("--layers-per-stage", f.layers_per_stage, "e.g. 5,5,6 (even)")
      .delimiter(',')
      .check(integer_in(0, kMost));
  command.add_option("--all-to-all", f.all_to_all,
                     fmt::format("how rows travel to their experts: {} (flat)",
                                 one_of_names<strategy::AllToAll>()));
  command
      .add_option("--all-to-all-chunk", f.all_to_all_chunk_bytes,
                  fmt::format("bytes of a message of {} at most (uncut)", cut_exchanges()))
      .check(count);
  command.add_option("--reduction", f.reduction,
                     fmt::format("how gradients are summed: {} (direct)",
                                 one_of_explained<strategy::Reduction>()));
  command.add_option("--reduction-start", f.reduction_start,
                     fmt::format("when gradients are summed: {} (ready)",
                                 one_of_explained<strategy::ReductionStart>()));
  command.add_option(
      "--context-exchange", f.context_exchange,
      fmt::format("how ranks that share a sequence exchange keys and values: {} (ring)",
                  one_of_explained<strategy::ContextExchange>()));
  command.add_option("--moe-schedule", f.moe_schedule,
                     fmt::format("order of a mixture layer: {} (plain)",
                                 one_of_explained<strategy::MoeSchedule>(kRuns)));
  command.add_option("--moe-chunks", f.moe_chunks, what_moe_chunks_are() + " (1)")
      .check(integer_in(1, strategy::kMaxMoeChunks));
  command
      .add_option("--redundant-experts", f.redundant_experts,
                  "slots for copies of experts in every mixture layer, a multiple of ep; "
                  "--rebalance replicate chooses of which (0)")
      .check(integer_in(0, strategy::kMaxCount));
  command
      .add_option(
          "--expert-compression", f.expert_compression,
          "with ZeRO 1 or 2: of experts' updated weights the ranks that hold them alike are "
          "sent one part in so many, what has changed most (1: all)")
      .check(integer_in(1, strategy::kMostExpertCompression));
  command.add_option(
      "--schedule", f.schedule,
      fmt::format("{} (1f1b)", fmt::join(names_of<strategy::PipelineSchedule>(), ", ")));
  command.add_option("--tp", f.tp, "ranks that share a layer's matrices (1)").check(count);
  command.add_option("--cp", f.cp, "ranks that share a sequence (1)").check(count);
  command.add_option("--etp", f.etp, "ranks that share an expert's matrices (1)").check(count);
  command
      .add_option("--vpp", f.vpp, "chunks of layers a rank holds (1; 2 under zb-v and dualpipev)")
      .check(count);
  command.add_option("--zero", f.zero, "ZeRO stage, 0 to 3 (0)").check(integer_in(0, 3));
  command.add_flag("--sequence-parallel", f.sequence_parallel,
                   "tokens divided over tp between the blocks of a layer");
  command.add_option(
      "--offload", f.offload,
      fmt::format("what is kept in host memory: {} (none)", one_of_names<strategy::Offload>()));
  command.add_option(
      "--placement", f.placement,
      one_of_names<strategy::Placement>() + ": which ranks are neighbours (the first)");
  command.add_option("--recompute", f.recompute, one_of_names<Recompute>() + " (none)");
  command.add_option(
      "--precision", f.precision,
      fmt::format("{}; {} are priced, not trained", one_of_names<Precision>(kRuns),
                  in_a_sentence(names_where<Precision>(std::not_fn(kRuns)), ", ", " and ")));
  command
      .add_option("--capacity-factor", f.capacity_factor,
                  "rows that an expert takes of a sequence, in even shares; it drops the others "
                  "(none: dropless)")
      .check(number_in(strategy::kLeastCapacityFactor, strategy::kLargestCapacityFactor));
  command.add_option("--drop", f.drop,
                     fmt::format("what goes beyond the capacity: by {} (probability)",
                                 one_of_names<strategy::Drop>()));
  command.add_flag(
      "--pad-to-capacity", f.pad_to_capacity,
      "send every expert its whole capacity, the rest of it in rows that weigh nothing");
  command.add_option("--mtp-depth", f.mtp_depth,
                     "modules of multi-token prediction to train beside the model (0)");
}

std::string flag_of(std::string_view key) {
  static constexpr std::pair<std::string_view, const char*> kFlags[] = {
      {"mesh.pp", "--pp"},
      {"mesh.ep", "--ep"},
      {"mesh.dp", "--dp"},
      {"mesh.tp", "--tp"},
      {"mesh.cp", "--cp"},
      {"mesh.etp", "--etp"},
      {"mesh.vpp", "--vpp"},
      {"zero", "--zero"},
      {"sequence_parallel", "--sequence-parallel"},
      {"layers_per_stage", "--layers-per-stage"},
      {"micro_batch_sequences", "--micro-batch"},
      {"num_micro_batches", "--num-micro-batches"},
      {"global_batch_sequences", "--global-batch"},
      {"sequence", "--sequence"},
      {"capacity_factor", "--capacity-factor"},
      {"pad_to_capacity", "--pad-to-capacity"},
      {"reduction_start", "--reduction-start"},
      {"context_exchange", "--context-exchange"},
      {"moe_schedule", "--moe-schedule"},
      {"moe_chunks", "--moe-chunks"},
      {"redundant_experts", "--redundant-experts"},
      {"expert_compression", "--expert-compression"},
      {"mtp_depth", "--mtp-depth"}};
  const auto found =
      std::ranges::find(kFlags, key, &std::pair<std::string_view, const char*>::first);
  return found == std::end(kFlags) ? strategy::quoted(key) : found->second;
}

Strategy strategy_from_flags(const StrategyFlags& flags, const model::Model& model) {
  return flags.strategy.empty() ? from_axes(flags, model) : from_file(flags, model);
}

void note_parameters(Json& plan, const model::Model& model) {
  plan["predicted"]["model_parameters"] = model::count_parameters(model).total();
}

int64_t noted_parameters(const Json& plan) {
  const auto predicted = plan.find("predicted");
  if (predicted == plan.end() || !predicted->is_object()) return 0;
  const auto count = predicted->find("model_parameters");
  return count != predicted->end() && count->is_number_integer() ? count->get<int64_t>() : 0;
}

std::string model_of(const StrategyFlags& f) {
  if (!f.model.empty()) return f.model;
  if (f.strategy.empty())
    throw InvalidInput(
        "--model is missing: a built-in name (piper model --list), a config.json or its folder; or "
        "--strategy with a file that piper plan --out wrote");
  if (f.strategy != kStandardInput && !std::filesystem::exists(f.strategy))
    throw InvalidInput(f.strategy + ": no such file");
  const Json json = read_json_input(f.strategy);
  const auto found = json.is_object() ? json.find("model") : json.end();
  if (found == json.end() || !found->is_string() || found->get<std::string>().empty())
    throw InvalidInput(f.strategy + ": names no model; give --model");
  std::string name = found->get<std::string>();
  if (std::ranges::count(model::builtin_models(), name) == 0)
    throw InvalidInput(fmt::format("{}: its model '{}' is no built-in; give --model: {}",
                                   f.strategy, name, models_like(json)));
  return name;
}

cluster::Cluster cluster_of(const StrategyFlags& flags, const Strategy& strategy) {
  const std::string name = flags.cluster.empty() ? strategy.cluster : flags.cluster;
  if (name.empty())
    throw InvalidInput(
        "--cluster is missing: a built-in name (piper cluster --list) or a file that piper profile "
        "--out wrote");
  cluster::Cluster cluster = cluster::load_cluster(name);
  if (strategy.mesh.world() > cluster.num_devices())
    throw InvalidInput(fmt::format(
        "the strategy has {} ranks, cluster {} has {} devices; allowed: at most that many",
        strategy.mesh.world(), cluster.name, cluster.num_devices()));
  return cluster;
}

Priced priced_from_flags(StrategyFlags flags) {
  flags.model = model_of(flags);
  Priced priced{.model = read_model(flags.model, flags.ignore)};
  if (!flags.cluster.empty()) {
    const cluster::Cluster cluster = cluster::load_cluster(flags.cluster);
    if (cluster.kind == "gpu") {
      flags.default_sequence = 4096;
      if (cluster.compute.contains("bf16")) flags.default_precision = Precision::kBf16;
    }
  }
  priced.strategy = strategy_from_flags(flags, priced.model);
  priced.model = model::with_mtp(std::move(priced.model), priced.strategy.mtp_depth);
  priced.cluster = cluster_of(flags, priced.strategy);
  return priced;
}

namespace {

// What a plan's file says of itself under one of these keys, the last that is there; "" if none is.
std::string planned_for(const Strategy& s, std::initializer_list<const char*> keys) {
  std::string found;
  for (const char* key : keys)
    if (s.predicted && s.predicted->contains(key) && s.predicted->at(key).is_string())
      found = s.predicted->at(key).get<std::string>();
  return found;
}

bool is_builtin_trainer(const std::string& name) {
  const std::vector<std::string> known = cost::builtin_trainers();
  return std::ranges::find(known, name) != known.end();
}

constexpr auto kTrainerKeys = {"stack", "trainer"};  // as it was called before, and is

}  // namespace

cost::TrainerProfile trainer_of(const std::string& flag, const cluster::Cluster& cluster) {
  if (!flag.empty()) return cost::load_trainer(flag);
  const std::string taken = cost::default_trainer(cluster);
  if (taken.empty())
    throw InvalidInput(
        fmt::format("--trainer is missing: none is taken unasked on {}; allowed: {}, or a file",
                    cluster.device, fmt::join(cost::builtin_trainers(), ", ")));
  return cost::load_trainer(taken);
}

cost::LoadDistribution load_of(const std::string& flag, const Strategy& s) {
  if (!flag.empty()) return cost::parse_load(flag);
  const std::string planned = planned_for(s, {"load"});
  return cost::parse_load(planned.empty() ? cost::kDefaultLoad : planned);
}

double imbalance_of(const cost::LoadDistribution& load, const Strategy& s,
                    const model::Model& model) {
  return cost::expected_imbalance(load, model, s.mesh.ep);
}

std::string in_words(const cost::LoadDistribution& load, const Strategy& s,
                     const model::Model& model) {
  if (model.num_moe_layers() == 0) return "";
  if (load.kind == cost::LoadKind::kUniform) return "load balanced";
  return fmt::format("load {}: the busiest of {} expert ranks has {:.2f} times the mean", load.text,
                     s.mesh.ep, imbalance_of(load, s, model));
}

cost::TrainerProfile trainer_of(const std::string& flag, const Strategy& s,
                                const cluster::Cluster& cluster) {
  const std::string planned = planned_for(s, kTrainerKeys);
  if (!flag.empty() || planned.empty()) return trainer_of(flag, cluster);
  if (!is_builtin_trainer(planned))
    throw InvalidInput(
        fmt::format("the strategy was planned for the trainer '{}', which is not built in; give "
                    "--trainer: its file",
                    planned));
  return cost::load_trainer(planned);
}

std::optional<cost::TrainerProfile> trainer_of(const std::string& flag, const Strategy& s) {
  const std::string name = flag.empty() ? planned_for(s, kTrainerKeys) : flag;
  if (flag.empty() && !is_builtin_trainer(name)) return std::nullopt;
  return cost::load_trainer(name);
}

Flag add_trainer_flag(Subcommand command, std::string& name, const std::string& otherwise) {
  command.add_option("--stack", name).hidden();
  return command.add_option(
      "--trainer", name,
      "the software that would run it: a name of configs/trainers or a file" + otherwise);
}

void require_runnable(const Strategy& s, const model::Model& model, const std::string& command) {
  std::vector<std::string> lines = strategy::not_runnable(s, model);
  if (lines.empty()) return;
  const Strategy near = strategy::nearest_runnable(s, model);
  for (std::string& line : lines) line = fmt::format("piper {}: {}", command, line);
  lines.push_back(fmt::format("the nearest that it executes: {}", plan::describe(near)));
  throw InvalidInput(lines);
}

void refuse_word(const char* flag, const std::string& text, const std::vector<std::string>& names) {
  throw InvalidInput(fmt::format("{} is '{}'; allowed: {}{}", flag, text, fmt::join(names, ", "),
                                 did_you_mean(text, names)));
}

Recompute parse_recompute(const std::string& text) {
  if (const auto recompute = strategy::recompute_from(text)) return *recompute;
  return parse_word<Recompute>("--recompute", text);
}

}  // namespace piper::cli
