#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/export/export.h>
#include <piper/export/start_script.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>

namespace piper::exporting {
namespace {

using strategy::Strategy;

// What torchtitan calls the models that it has: keys and what they mean are those of this commit.
constexpr const char* kCommit = "b5bcd76c";
constexpr const char* kDate = "2026-08-21";
struct Registered {
  std::string_view model;  // ours
  const char* module;
  const char* flavor;  // in its model_registry()
  const char* config;  // the function that trains that flavor; empty: there is none
};
constexpr std::array kRegistered{
    Registered{"deepseek-v2-lite", "deepseek_v3", "16B", "deepseek_v3_16b"},
    Registered{"deepseek-v3", "deepseek_v3", "671B", "deepseek_v3_671b"},
    Registered{"gpt-oss-20b", "gpt_oss", "20b", "gpt_oss_20b"},
    Registered{"qwen3-30b-a3b", "qwen3", "30B-A3B", "qwen3_30b_a3b"},
    Registered{"qwen3-235b-a22b", "qwen3", "235B-A22B", ""}};

const Registered* registered(const model::Model& model) {
  const auto found = std::ranges::find(kRegistered, model.name, &Registered::model);
  return found == kRegistered.end() ? nullptr : &*found;
}

const char* schedule_name(strategy::PipelineSchedule schedule) {
  switch (schedule) {
    case strategy::PipelineSchedule::kGPipe:
      return "GPipe";
    case strategy::PipelineSchedule::k1F1B:
      return "1F1B";
    case strategy::PipelineSchedule::kInterleaved:
      return "Interleaved1F1B";
    case strategy::PipelineSchedule::kZbH1:
      return "-";  // there is none
    case strategy::PipelineSchedule::kZbV:
      return "ZBVZeroBubble";
    case strategy::PipelineSchedule::kDualPipeV:
      return "DualPipeV";
    case strategy::PipelineSchedule::k1F1BPairs:
    case strategy::PipelineSchedule::kInterleavedPairs:
      return "-";  // there is none
  }
  return "?";
}

// Its split of layers: both ends count for some layers more than they have, and the first stages
// take what does not divide.
struct Split {
  int64_t first_less = 0, last_less = 0;

  std::vector<int64_t> stages(int64_t layers, int64_t num_stages) const {
    const int64_t all = layers + first_less + last_less;
    std::vector<int64_t> split(static_cast<size_t>(num_stages), all / num_stages);
    for (int64_t i = 0; i < all % num_stages; ++i) ++split[static_cast<size_t>(i)];
    split.front() -= first_less;
    split.back() -= last_less;
    return split;
  }
  // It refuses an end that counts for more than a stage has at least.
  bool is_taken(int64_t layers, int64_t num_stages) const {
    return std::max(first_less, last_less) <= (layers + first_less + last_less) / num_stages;
  }
};

std::optional<Split> split_of(const Strategy& s) {
  const std::vector<int64_t>& wanted = s.layers_per_stage;
  const int64_t layers = std::accumulate(wanted.begin(), wanted.end(), int64_t{0});
  const int64_t num_stages = std::ssize(wanted), most = layers / num_stages + 2;
  for (int64_t first = 0; first <= most; ++first)
    for (int64_t last = 0; last <= most; ++last) {
      const Split split{first, last};
      if (split.is_taken(layers, num_stages) && split.stages(layers, num_stages) == wanted)
        return split;
    }
  return std::nullopt;
}

class TorchtitanWriter {
 public:
  explicit TorchtitanWriter(const Job& job) : job_(job), model_(job.model), s_(job.strategy) {}

  Exported write() {
    settings();
    mesh();
    if (s_.mesh.pp > 1) pipeline();
    batch();
    states();
    for (const auto& [flag, value] : job_.ruling.flags)
      script_.flags.push_back(value.empty() ? flag : fmt::format("{} {}", flag, value));
    recomputation();  // a subcommand: what follows it would be its own
    script_.software = fmt::format("torchtitan {} ({})", kCommit, kDate);
    script_.program = "-m torchtitan.train --module \"$MODULE\" --config \"$CONFIG\"";
    script_.environment = job_.ruling.environment;
    script_.environment.emplace("PYTORCH_ALLOC_CONF", "expandable_segments:True");
    exported_.text = text_of(script_, s_, job_.machine);
    return std::move(exported_);
  }

 private:
  template <class T>
  void add(const char* flag, const T& value) {
    script_.flags.push_back(fmt::format("--{} {}", flag, value));
  }
  void note(std::string line) { exported_.differs.push_back(std::move(line)); }

  void settings() {
    const Registered* known = registered(model_);
    const bool has_config = known != nullptr && known->config[0] != '\0';
    if (known == nullptr)
      note(
          fmt::format("model {}: torchtitan {} has no implementation of it: MODULE and CONFIG "
                      "name a module of yours",
                      model_.name, kCommit));
    else if (!has_config)
      note(
          fmt::format("model {}: torchtitan {} has its shapes (model_registry(\"{}\") of "
                      "torchtitan.models.{}) but no config: CONFIG names a function of yours",
                      model_.name, kCommit, known->flavor, known->module));
    note(
        "data set, learning rate and attention backend stand in the config's function, not in "
        "flags");
    script_.settings = {
        {"MODULE", "the module with the model and its config_registry",
         known != nullptr && has_config ? known->module : ""},
        {"CONFIG", "the function of config_registry: model, data set, learning rate",
         has_config ? known->config : ""},
        {"ASSETS", "folder of the tokenizer, as scripts/download_hf_assets.py leaves it", ""},
        {"STEPS", "steps of the run", ""}};
    script_.flags = {"--hf_assets_path \"$ASSETS\"", "--training.steps \"$STEPS\""};
    if (s_.mtp_depth > 0)
      note(fmt::format("mtp-depth {}: num_mtp_layers of model_registry() and MTPLoss in the config",
                       s_.mtp_depth));
  }

  // Experts are spread over ranks that also shard the rest of the weights; with ZeRO 2 and 3 all
  // replicas do, and fully_shard() gathers the weights once for both passes or for each.
  void mesh() {
    const strategy::Mesh& m = s_.mesh;
    const bool shards = s_.zero > 0;
    const int64_t inside = m.ranks_per_sequence();
    const int64_t shard = shards ? m.dp : m.ep / std::gcd(m.ep, inside);
    add("parallelism.data_parallel_replicate_degree", m.dp / shard);
    add("parallelism.data_parallel_shard_degree", shard);
    if (shards)
      add("parallelism.fsdp_reshard_after_forward", s_.zero == 3 ? "always" : "never");
    else if (shard * m.cp > 1)
      note(
          fmt::format("weights, gradients and optimizer of what is no expert are sharded over {} "
                      "ranks (FSDP): less memory, more communication than planned",
                      shard * m.cp));
    add("parallelism.expert_parallel_degree", m.ep);
    add("parallelism.tensor_parallel_degree", m.tp);
    if (m.tp > 1)
      script_.flags.emplace_back(s_.sequence_parallel
                                     ? "--parallelism.enable_sequence_parallel"
                                     : "--parallelism.no-enable_sequence_parallel");
    add("parallelism.context_parallel_degree", m.cp);
    add("parallelism.pipeline_parallel_degree", m.pp);
  }

  void pipeline() {
    add("parallelism.pipeline_parallel_schedule", schedule_name(s_.schedule));
    add("parallelism.num_pp_microbatches", s_.num_micro_batches);
    std::optional<Split> split = split_of(s_);
    // Two chunks a rank are its default; more follow from the layers of a stage.
    const Split used = split.value_or(Split());
    const int64_t num_stages = std::ssize(s_.layers_per_stage);
    const int64_t effective = model_.num_layers() + used.first_less + used.last_less;
    if (s_.mesh.vpp > 2) {
      const int64_t of_a_stage = strategy::layers_that_make(num_stages, effective);
      if (of_a_stage == 0)
        exported_.cannot.push_back(fmt::format(
            "vpp {}: torchtitan infers the chunks from the layers of one, and no number of them "
            "makes {} of {} layers; the nearest: --vpp 2",
            s_.mesh.vpp, num_stages, model_.num_layers()));
      else
        add("parallelism.pipeline_parallel_layers_per_stage", of_a_stage);
    }
    add("parallelism.pipeline_parallel_first_stage_less_layers", used.first_less);
    add("parallelism.pipeline_parallel_last_stage_less_layers", used.last_less);
    if (!split)
      note(fmt::format(
          "layers by stage {}: flags make {}; the plan's own are named in the config, by "
          "parallelism.module_fqns_per_model_part",
          fmt::join(s_.layers_per_stage, ","),
          fmt::join(used.stages(model_.num_layers(), num_stages), ",")));
  }

  // Tokens of a micro-batch; without a pipeline they are accumulated.
  void batch() {
    add("training.num_tokens_per_microbatch_per_dp_rank", s_.micro_batch_sequences * s_.sequence);
    add("training.num_tokens_per_train_step", s_.global_batch_sequences * s_.sequence);
    add("training.max_context_length", s_.sequence);
  }

  void states() {
    add("training.dtype", "float32");
    add("training.mixed_precision_param",
        s_.precision == strategy::Precision::kFp32 ? "float32" : "bfloat16");
    script_.flags.emplace_back("--compile.enable");
    if (converts_operands(s_.precision))
      note(
          fmt::format("{}: no flag; the config applies a converter of "
                      "torchtitan.components.quantization",
                      strategy::name(s_.precision)));
    if (s_.offload == strategy::Offload::kNone) return;
    script_.flags.emplace_back("--training.enable_cpu_offload");
    note("offload: torchtitan moves weights, gradients and optimizer together");
  }

  void recomputation() {
    if (s_.recompute == strategy::Recompute::kFull)
      script_.flags.emplace_back("activation_checkpoint:full");
    else if (s_.recompute == strategy::Recompute::kNone)
      script_.flags.emplace_back("activation_checkpoint:none");
  }

  const Job& job_;
  const model::Model& model_;
  const Strategy& s_;
  StartScript script_;
  Exported exported_;
};

}  // namespace

Exported to_torchtitan(const Job& job) { return TorchtitanWriter(job).write(); }

}  // namespace piper::exporting
