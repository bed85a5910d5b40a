#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/export/export.h>
#include <piper/export/fields.h>
#include <piper/export/megatron_settings.h>
#include <piper/export/start_script.h>
#include <piper/model/import.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace piper::exporting {
namespace {

using strategy::PipelineSchedule;
using strategy::Recompute;
using strategy::Strategy;

Strategy example(const model::Model& model, strategy::Mesh mesh, int64_t micro_batch = 2,
                 int64_t count = 8) {
  Strategy s{.model = model.name, .mesh = mesh, .precision = strategy::Precision::kBf16};
  s.layers_per_stage = strategy::even_split(model.num_layers(), mesh.pp);
  s.sequence = 4096;
  s.micro_batch_sequences = micro_batch;
  s.num_micro_batches = count;
  s.global_batch_sequences = mesh.dp * micro_batch * count;
  REQUIRE(strategy::contradictions(s, model).empty());
  return s;
}

// Flag to value, of a start script or of flags alone; "" for a switch.
std::map<std::string, std::string> flags_of(const std::string& text) {
  std::map<std::string, std::string> flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.ends_with(" \\")) line.resize(line.size() - 2);
    if (!line.starts_with("--")) continue;
    const size_t space = line.find(' ');
    CHECK(flags
              .emplace(line.substr(0, space),
                       space == std::string::npos ? "" : line.substr(space + 1))
              .second);
  }
  return flags;
}

// The same of the command of a start script: the lines that follow the launcher's.
std::map<std::string, std::string> flags_of_script(const std::string& text) {
  std::string flags;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  --") && !line.starts_with("  --node-rank") &&
        line != "  --standalone \\") {
      line = line.substr(2);
      if (line.ends_with(" \\")) line.resize(line.size() - 2);
      flags += line + "\n";
    }
  return flags_of(flags);
}

bool says(const std::vector<std::string>& lines, const std::string& what) {
  for (const std::string& line : lines)
    if (line.find(what) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE(
    "Megatron-LM: the data-parallel degree and the micro-batches that it infers are the plan's") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const Strategy s = example(model, {.pp = 4, .ep = 8, .dp = 16});
  const auto flags = flags_of(to_megatron({model, s}).text);
  const int64_t pp = std::stoll(flags.at("--pipeline-model-parallel-size"));
  const int64_t dp = s.mesh.world() / pp / std::stoll(flags.at("--tensor-model-parallel-size"));
  CHECK(dp == s.mesh.dp);
  CHECK(std::stoll(flags.at("--global-batch-size")) /
            (dp * std::stoll(flags.at("--micro-batch-size"))) ==
        s.num_micro_batches);
  CHECK(flags.at("--expert-model-parallel-size") == "8");
  CHECK(flags.at("--num-query-groups") == "4");
  CHECK(flags.at("--moe-router-topk") == "8");
  CHECK(flags.at("--moe-layer-freq") == "'([1]*48)'");
  // transformers joins all 48 layers' routers, Megatron adds up their losses.
  CHECK(std::stod(flags.at("--moe-aux-loss-coeff")) == doctest::Approx(0.001 * 8 / 48));
  CHECK(flags.count("--qk-layernorm") == 1);
  CHECK(flags.count("--bf16") == 1);
  CHECK(flags.count("--recompute-granularity") == 0);
  CHECK(flags.count("--pipeline-model-parallel-layout") == 0);
}

// By megatron-bridge's price: gradients, tensor parallelism and exchanges hide behind compute.
TEST_CASE("what the price hides is asked for; what Megatron Core cannot hide is said") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const cost::TrainerProfile bridge = cost::load_trainer("megatron-bridge");
  Strategy s = example(model, {.pp = 2, .ep = 8, .dp = 8, .tp = 2});
  s.mesh.vpp = 2;
  s.layers_per_stage = strategy::even_split(model.num_layers(), 4);
  s.schedule = PipelineSchedule::kInterleaved;
  s.sequence_parallel = true;
  s.zero = 1;
  const auto given = [&](const cost::TrainerProfile* priced) {
    const auto flags = flags_of(export_strategy(Trainer::kMegatron, model, s, priced).text);
    std::vector<size_t> counts;
    for (const char* flag : {"--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap",
                             "--overlap-moe-expert-parallel-comm"})
      counts.push_back(flags.count(flag));
    return counts;
  };
  CHECK(given(&bridge) == std::vector<size_t>{1, 1, 1, 1});
  // The profile megatron hides gradients and gathers.
  CHECK(given(nullptr) == std::vector<size_t>{1, 1, 0, 0});
  const cost::TrainerProfile eager = cost::load_trainer("megatron-eager");
  CHECK(given(&eager) == std::vector<size_t>{0, 0, 0, 0});
  const cost::TrainerProfile torchtitan = cost::load_trainer("torchtitan");
  CHECK(given(&torchtitan) == given(nullptr));  // not of this software
  s.zero = 0;
  CHECK(given(&bridge) == std::vector<size_t>{1, 0, 1, 1});
  s.recompute = Recompute::kFull;
  CHECK(given(&bridge) == std::vector<size_t>{1, 0, 1, 0});
  CHECK(says(export_strategy(Trainer::kMegatron, model, s, &bridge).differs, "full recomputation"));
  s.recompute = Recompute::kExperts;  // moe_act alone
  CHECK(given(&bridge) == std::vector<size_t>{1, 0, 1, 1});
  s.precision = strategy::Precision::kFp32;
  CHECK(given(&bridge) == std::vector<size_t>{1, 0, 1, 0});
  CHECK(says(export_strategy(Trainer::kMegatron, model, s, &bridge).differs, "not in fp32"));
  s.precision = strategy::Precision::kBf16;
  s.recompute = Recompute::kNone;
  s.sequence_parallel = false;
  CHECK(given(&bridge) == std::vector<size_t>{0, 0, 0, 0});
  CHECK(says(export_strategy(Trainer::kMegatron, model, s, &bridge).cannot,
             "tp 2 without sequence parallelism"));
  s = example(model, {.pp = 2, .ep = 8, .dp = 8});
  CHECK(given(&bridge) == std::vector<size_t>{1, 0, 0, 0});
  CHECK(says(export_strategy(Trainer::kMegatron, model, s, &bridge).differs, "virtual stages"));
  s.zero = 1;
  CHECK(export_strategy(Trainer::kNemo, model, s, &bridge)
            .text.find("overlap_param_gather: true\n") != std::string::npos);
}

TEST_CASE("fp16: DeepSpeed's own key; torchtitan has none") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 1, .ep = 8, .dp = 16});
  s.precision = strategy::Precision::kFp16;
  const Json json = Json::parse(export_strategy(Trainer::kDeepSpeed, model, s).text);
  CHECK(json["fp16"]["enabled"] == true);
  CHECK(json["bf16"]["enabled"] == false);
  CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot,
             "fp16: torchtitan trains in fp32 and bf16"));
}

TEST_CASE("a capacity is asked for in each trainer's words, or refused") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 2, .ep = 8, .dp = 8});
  CHECK(flags_of(to_megatron({model, s}).text).count("--moe-expert-capacity-factor") == 0);
  s.capacity = {.factor = 1.25, .drop = strategy::Drop::kPosition};
  auto flags = flags_of(to_megatron({model, s}).text);
  CHECK(flags.at("--moe-expert-capacity-factor") == "1.25");
  CHECK(flags.at("--moe-token-drop-policy") == "position");
  CHECK(flags.count("--moe-pad-expert-input-to-capacity") == 0);
  s.capacity = {.factor = 1.25, .pads = true};
  flags = flags_of(to_megatron({model, s}).text);
  CHECK(flags.at("--moe-token-drop-policy") == "probs");
  CHECK(flags.count("--moe-pad-expert-input-to-capacity") == 1);
  CHECK(export_strategy(Trainer::kNemo, model, s)
            .text.find("moe_pad_expert_input_to_capacity: true") != std::string::npos);
  CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot, "without a capacity"));
  s.mesh.pp = 1;
  s.layers_per_stage = {model.num_layers()};
  CHECK(says(export_strategy(Trainer::kDeepSpeed, model, s).differs,
             "capacity_factor=1.25, eval_capacity_factor=1.25, min_capacity=1)"));
}

TEST_CASE("micro-batches in pairs: Megatron-LM's flag, in a pipeline with virtual stages alone") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 2, .ep = 8, .dp = 8});
  s.mesh.vpp = 2;
  s.layers_per_stage = strategy::even_split(model.num_layers(), 4);
  s.schedule = PipelineSchedule::kInterleavedPairs;
  const auto asks = [&] {
    return flags_of(export_strategy(Trainer::kMegatron, model, s).text)
        .count("--overlap-moe-expert-parallel-comm");
  };
  CHECK(asks() == 1);
  // Megatron-Bridge starts the same software: a plan by Megatron-LM's profile is its too.
  const Exported recipe = export_strategy(Trainer::kMegatronBridge, model, s);
  CHECK(recipe.cannot.empty());
  CHECK(recipe.text.find("overlap_moe_expert_parallel_comm=True") != std::string::npos);
  s.recompute = Recompute::kFull;
  CHECK(asks() == 0);
  CHECK(
      says(export_strategy(Trainer::kMegatron, model, s).cannot,
           "schedule interleaved-pairs: Megatron Core overlaps no exchanges of experts under full "
           "recomputation"));
  s = example(model, {.pp = 1, .ep = 8, .dp = 8});
  s.schedule = PipelineSchedule::k1F1BPairs;
  CHECK(asks() == 1);
  // Who is asked for it is not said not to do it.
  for (const Trainer trainer : {Trainer::kMegatron, Trainer::kNemo})
    CHECK(!says(export_strategy(trainer, model, s).differs, "hides no exchange"));
  CHECK(says(export_strategy(Trainer::kDeepSpeed, model, s).differs,
             "hides no exchange behind another micro-batch"));
  s = example(model, {.pp = 2, .ep = 8, .dp = 8});
  s.schedule = PipelineSchedule::k1F1BPairs;
  CHECK(says(export_strategy(Trainer::kMegatron, model, s).cannot,
             "schedule 1f1b-pairs: Megatron Core runs 1f1b, interleaved, interleaved-pairs; the "
             "nearest: --schedule interleaved-pairs"));
  CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot,
             "schedule 1f1b-pairs: torchtitan runs gpipe, 1f1b"));
}

TEST_CASE("Megatron-LM: DeepSeek-V3's attention, routing and first layers") {
  const model::Model model = model::load_model("deepseek-v3");
  Strategy s = example(model, {.pp = 8, .ep = 16, .dp = 32});
  s.recompute = Recompute::kFull;
  const Exported exported = export_strategy(Trainer::kMegatron, model, s);
  const auto flags = flags_of(exported.text);
  CHECK(flags.at("--moe-layer-freq") == "'([0]*3+[1]*58)'");
  CHECK(flags.at("--kv-lora-rank") == "512");
  CHECK(flags.at("--q-lora-rank") == "1536");
  CHECK(flags.at("--moe-router-score-function") == "sigmoid");
  CHECK(flags.at("--moe-router-num-groups") == "8");
  CHECK(flags.at("--moe-shared-expert-intermediate-size") == "2048");
  CHECK(flags.at("--ffn-hidden-size") == "18432");
  CHECK(flags.at("--recompute-granularity") == "full");
  // 61 layers on 8 stages do not divide: the layout names them all, the ends apart.
  std::string layout = flags.at("--pipeline-model-parallel-layout");
  int64_t layers = 0, stages = 1;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == '|') ++stages;
    if (layout[i] == '*') layers += std::stoll(layout.substr(i + 1));
  }
  CHECK(layers == 61);
  CHECK(stages == 8);
  CHECK(layout.find("'E") == 0);
  CHECK(says(exported.differs, "experimental"));
}

TEST_CASE("a name with lines of its own is no command of a script that runs") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy s = example(model, {.pp = 1, .ep = 8, .dp = 8});
  s.model = "m\nrm -rf x\n#";
  s.cluster = "c\rrm -rf y\x1b[2J";
  model::Model named = model;
  named.name = s.model;
  for (const Trainer trainer : kTrainers) {
    const Exported exported = export_strategy(trainer, named, s);
    CAPTURE(std::string(traits(trainer).name));
    std::istringstream lines(exported.text);
    for (std::string line; std::getline(lines, line);) {
      CHECK_FALSE(line.starts_with("rm "));
      CHECK(line.find_first_of("\r\x1b") == std::string::npos);
    }
  }
}

TEST_CASE("what a trainer cannot run is said, with the nearest, and nothing is written") {
  const model::Model moe = model::load_model("mixtral-8x7b");
  Strategy s = example(moe, {.pp = 4, .ep = 2, .dp = 4});
  s.schedule = PipelineSchedule::kGPipe;
  for (const Trainer trainer : {Trainer::kMegatron, Trainer::kNemo, Trainer::kDeepSpeed}) {
    const Exported exported = export_strategy(trainer, moe, s);
    CHECK(says(exported.cannot, "--schedule 1f1b"));
    CHECK(exported.text.empty());
  }
  CHECK(export_strategy(Trainer::kTorchtitan, moe, s).cannot.empty());
  s.precision = strategy::Precision::kFp64;
  for (const Trainer trainer : kTrainers)
    CHECK(says(export_strategy(trainer, moe, s).cannot, "fp64"));
  const model::Model both = model::load_model("arctic");
  CHECK(says(
      export_strategy(Trainer::kMegatron, both, example(both, {.pp = 1, .ep = 8, .dp = 8})).cannot,
      "a dense MLP beside the mixture"));
}

TEST_CASE("DeepSpeed: the three sizes of a batch agree with the number of processes") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const Strategy s = example(model, {.pp = 1, .ep = 4, .dp = 8}, 1, 16);
  const Exported exported = to_deepspeed({model, s});
  const Json json = parse_json(exported.text, "deepspeed");
  CHECK(json["train_batch_size"].get<int64_t>() ==
        json["train_micro_batch_size_per_gpu"].get<int64_t>() *
            json["gradient_accumulation_steps"].get<int64_t>() * s.mesh.dp);
  CHECK(json["bf16"]["enabled"] == true);
  CHECK(says(exported.differs, "ep_size=4"));
  CHECK(says(exported.differs, "keys of DeepSpeed 0.19.8"));
  CHECK(says(exported.differs, "deepspeed --hostfile HOSTS --num_nodes 1 --num_gpus 8 "));
}

TEST_CASE("torchtitan: its degrees multiply to the world, its tokens to the plan's") {
  const model::Model model = model::load_model("deepseek-v3");
  for (const strategy::Mesh& mesh :
       {strategy::Mesh{.pp = 1, .ep = 8, .dp = 32}, {.pp = 8, .ep = 16, .dp = 32}}) {
    const Strategy s = example(model, mesh);
    const auto flags = flags_of_script(export_strategy(Trainer::kTorchtitan, model, s).text);
    const auto number = [&](const char* flag) { return std::stoll(flags.at(flag)); };
    const int64_t ranks = number("--parallelism.data_parallel_replicate_degree") *
                          number("--parallelism.data_parallel_shard_degree");
    CHECK(ranks * number("--parallelism.pipeline_parallel_degree") == mesh.world());
    // Its own rule: the experts' ranks are taken from those that shard.
    CHECK(number("--parallelism.data_parallel_shard_degree") %
              number("--parallelism.expert_parallel_degree") ==
          0);
    const int64_t tokens = number("--training.num_tokens_per_microbatch_per_dp_rank");
    CHECK(tokens == s.micro_batch_sequences * s.sequence);
    CHECK(number("--training.max_context_length") == s.sequence);
    const int64_t micro_batches = number("--training.num_tokens_per_train_step") / tokens / ranks;
    CHECK(micro_batches == s.num_micro_batches);
    if (mesh.pp > 1) CHECK(number("--parallelism.num_pp_microbatches") == micro_batches);
    CHECK(flags.count("--training.disable_cuda_graphs") == 1);
  }
}

// Experts lie on ranks that share sequences too: as few as it takes shard the rest.
TEST_CASE("torchtitan: expert parallelism takes ranks of tp and cp before it shards") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 1, .ep = 8, .dp = 8, .tp = 4});
  s.sequence_parallel = true;
  const auto flags = flags_of_script(to_torchtitan({model, s}).text);
  CHECK(flags.at("--parallelism.data_parallel_shard_degree") == "2");
  CHECK(flags.at("--parallelism.data_parallel_replicate_degree") == "4");
  CHECK(flags.count("--parallelism.enable_sequence_parallel") == 1);
}

TEST_CASE("torchtitan: a start script for the machine, with what has to be filled in") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const Strategy s = example(model, {.pp = 2, .ep = 8, .dp = 32});
  const cluster::Cluster frontier = cluster::load_cluster("frontier");
  const auto text = [&](const cluster::Cluster* machine) {
    return export_strategy(Trainer::kTorchtitan, model, s, nullptr, machine).text;
  };
  CHECK(text(nullptr).starts_with("#!/usr/bin/env bash\n"));
  CHECK(text(nullptr).find("torchtitan b5bcd76c (2026-08-21)") != std::string::npos);
  CHECK(text(nullptr).find("torchrun --nnodes=8 --nproc-per-node=8 ") != std::string::npos);
  CHECK(text(nullptr).find("${MODULE:=qwen3}") != std::string::npos);
  CHECK(text(nullptr).find("${STEPS:?") != std::string::npos);
  const int64_t devices = frontier.devices_per_node();
  CHECK(text(&frontier).find(fmt::format("--nnodes={} --nproc-per-node={} ", 64 / devices,
                                         devices)) != std::string::npos);
  const model::Model other = model::load_model("mixtral-8x7b");
  const Exported unknown = to_torchtitan({other, example(other, {.pp = 1, .ep = 4, .dp = 4})});
  CHECK(unknown.text.find("${MODULE:?") != std::string::npos);
  CHECK(unknown.text.find("--nnodes=1 --nproc-per-node=4 ") != std::string::npos);
  CHECK(says(unknown.differs, "mixtral-8x7b: torchtitan b5bcd76c has no implementation"));
}

TEST_CASE("hosts hold as many ranks as they have devices and as divide all of them") {
  const auto hosts = [](int64_t world) {
    const Hosts h = hosts_of(Strategy{.mesh = {.dp = world}}, nullptr);
    return std::pair{h.num_hosts, h.ranks_per_host};
  };
  CHECK(hosts(1) == std::pair<int64_t, int64_t>{1, 1});
  CHECK(hosts(7) == std::pair<int64_t, int64_t>{1, 7});
  CHECK(hosts(12) == std::pair<int64_t, int64_t>{2, 6});
  CHECK(hosts(64) == std::pair<int64_t, int64_t>{8, 8});
}

TEST_CASE("torchtitan: tp divides the key heads") {
  model::Model model = model::load_model("qwen3-30b-a3b");
  for (model::Layer& layer : model.layers) layer.attention.num_kv_heads = 2;
  const auto refused = [&](Trainer trainer, int64_t tp) {
    Strategy s = example(model, {.pp = 1, .ep = 8, .dp = 8, .tp = tp});
    s.sequence_parallel = true;
    s.zero = trainer == Trainer::kMegatron ? 1 : 2;
    return export_strategy(trainer, model, s).cannot;
  };
  CHECK(refused(Trainer::kTorchtitan, 2).empty());
  for (const int64_t tp : {4, 8})
    CHECK(says(refused(Trainer::kTorchtitan, tp),
               "torchtitan takes a divisor of the 2 key heads; the nearest: --tp 2"));
  CHECK(refused(Trainer::kMegatron, 4).empty());
}

TEST_CASE("torchtitan: a split that its rule makes is flags, any other one is said") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 4, .ep = 2, .dp = 2});
  const auto given = [&](std::vector<int64_t> layers) {
    s.layers_per_stage = std::move(layers);
    const Exported exported = to_torchtitan({model, s});
    const auto flags = flags_of_script(exported.text);
    return std::tuple{flags.at("--parallelism.pipeline_parallel_first_stage_less_layers"),
                      flags.at("--parallelism.pipeline_parallel_last_stage_less_layers"),
                      says(exported.differs, "module_fqns_per_model_part")};
  };
  CHECK(given({12, 12, 12, 12}) == std::tuple{"0", "0", false});
  CHECK(given({11, 13, 13, 11}) == std::tuple{"2", "1", false});  // 51 layers, 3 of them first
  CHECK(given({12, 13, 12, 11}) == std::tuple{"1", "1", false});  // the first stages take the rest
  CHECK(given({11, 12, 13, 12}) == std::tuple{"0", "0", true});
  CHECK(pipeline_layout(model, s) == "Et*11|t*12|t*13|t*12L");
}

TEST_CASE("torchtitan: what part of a layer is recomputed, or by which stage, it cannot say") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  Strategy s = example(model, {.pp = 4, .ep = 2, .dp = 2});
  for (const Recompute r : {Recompute::kNone, Recompute::kFull}) {
    s.recompute = r;
    CHECK(export_strategy(Trainer::kTorchtitan, model, s).cannot.empty());
  }
  for (const Recompute r :
       {Recompute::kAttention, Recompute::kExperts, Recompute::kAttentionAndExperts}) {
    s.recompute = r;
    CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot, "--recompute full"));
    CHECK(export_strategy(Trainer::kTorchtitan, model, s).text.empty());
  }
  s.recompute = Recompute::kNone;
  s.recompute_per_stage = {Recompute::kFull, Recompute::kFull, Recompute::kNone, Recompute::kNone};
  for (const Trainer trainer : {Trainer::kTorchtitan, Trainer::kMegatron, Trainer::kNemo})
    CHECK(says(export_strategy(trainer, model, s).cannot,
               "recompute by stage: " + std::string(traits(trainer).software) +
                   " has one choice for all stages; the nearest: --recompute full"));
  // A list that says the same of every stage is the flag.
  s.recompute = Recompute::kFull;
  s.recompute_per_stage.assign(4, Recompute::kFull);
  for (const Trainer trainer : kTrainers) CHECK(export_strategy(trainer, model, s).cannot.empty());
}

TEST_CASE("a refusal names the axis, what the trainer runs and the nearest of it") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy s = example(model, {.pp = 4, .ep = 2, .dp = 4});
  s.schedule = PipelineSchedule::kZbH1;
  s.zero = 2;
  s.offload = strategy::Offload::kOptimizerAndActivations;
  CHECK(export_strategy(Trainer::kMegatron, model, s).cannot ==
        std::vector<std::string>{
            "schedule zb-h1: Megatron Core runs 1f1b, interleaved, interleaved-pairs; the nearest: "
            "--schedule interleaved",
            "zero 2 under a pipeline: Megatron Core runs 0, 1; the nearest: --zero 1",
            "offload optimizer+activations: Megatron Core runs none, optimizer; the nearest: "
            "--offload optimizer"});
  CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot, "--schedule zb-v"));
  CHECK(says(export_strategy(Trainer::kDeepSpeed, model, s).cannot, "--zero 1"));
  s.zero = 1;
  CHECK(says(export_strategy(Trainer::kTorchtitan, model, s).cannot,
             "torchtitan runs 0, 2, 3; the nearest: --zero 2"));
  s.mesh = {.pp = 4, .ep = 2, .dp = 4, .etp = 2, .tp = 4};
  CHECK(
      says(export_strategy(Trainer::kTorchtitan, model, s).cannot,
           "etp 2 beside tp 4: torchtitan divides one expert by 1 or by tp; the nearest: --etp 4"));
  CHECK(says(export_strategy(Trainer::kDeepSpeed, model, s).cannot, "--etp 1"));
  s.redundant_experts = 2;
  CHECK(says(export_strategy(Trainer::kMegatron, model, s).cannot,
             "redundant-experts 2: Megatron Core holds one copy of each expert; the nearest: "
             "--redundant-experts 0"));
  s.expert_compression = 50;
  CHECK(says(export_strategy(Trainer::kMegatron, model, s).cannot,
             "expert-compression 50: Megatron Core sends experts' weights whole; the nearest: "
             "--expert-compression 1"));
}

namespace {
// One value of an axis, put into a strategy that has the first value of every other axis.
struct AxisValue {
  std::string axis;  // as refusals begin
  std::function<void(Strategy&)> set;
};

std::vector<AxisValue> axis_values() {
  std::vector<AxisValue> values;
  for (const PipelineSchedule schedule : strategy::kPipelineSchedules)
    values.push_back({"schedule ", [schedule](Strategy& s) {
                        s.schedule = schedule;
                        const bool cuts =
                            strategy::is_v(schedule) || strategy::interleaves(schedule);
                        s.mesh.vpp = cuts && s.mesh.pp > 1 ? 2 : 1;
                      }});
  for (int64_t zero = 0; zero <= 3; ++zero)
    values.push_back({"zero ", [zero](Strategy& s) { s.zero = zero; }});
  for (const strategy::Offload offload : strategy::kOffloads)
    values.push_back({"offload ", [offload](Strategy& s) {
                        s.offload = offload;
                        // DeepSpeed copies activations of checkpointed layers alone.
                        s.recompute = Recompute::kFull;
                      }});
  for (const Recompute recompute : strategy::kRecomputes)
    values.push_back({"recompute ", [recompute](Strategy& s) { s.recompute = recompute; }});
  for (const int64_t etp : {1, 2, 4})
    values.push_back({"etp ", [etp](Strategy& s) { s.mesh.etp = etp; }});
  values.push_back({"recompute by stage", [](Strategy& s) {
                      s.recompute_per_stage.assign(static_cast<size_t>(s.mesh.pp), s.recompute);
                      s.recompute_per_stage.back() = Recompute::kFull;
                    }});
  return values;
}

bool is_offered(const cost::Offers& offers, const Strategy& s, const std::string& axis) {
  if (axis == "schedule ")
    return offers.has(s.schedule, s.mesh.pp) ||
           (s.mesh.pp == 1 &&
            (s.schedule == PipelineSchedule::kZbH1 || s.schedule == PipelineSchedule::k1F1BPairs));
  if (axis == "zero ") return offers.has_zero(s.zero, s.mesh.pp);
  if (axis == "offload ") return offers.has_offload_of(s);
  if (axis == "recompute ") return offers.has(s.recompute);
  if (axis == "etp ") return offers.has_expert_tensor(s.mesh.etp, s.mesh.tp);
  return offers.recompute_by_stage ||
         std::ranges::all_of(s.recompute_per_stage, [&](Recompute r) { return r == s.recompute; });
}

}  // namespace

TEST_CASE(
    "an exporter refuses what its trainer's profile does not offer, and writes all of what it "
    "does") {
  const model::Model model = model::load_model("mixtral-8x7b");  // 32 layers
  for (const Trainer trainer : kTrainers) {
    CAPTURE(std::string(traits(trainer).name));
    const cost::Offers offers = cost::load_trainer(traits(trainer).profile).offers;
    std::vector<cost::Offers> all_offers{offers};
    for (const std::string& name : cost::builtin_trainers())
      if (const cost::TrainerProfile profile = cost::load_trainer(name);
          name.starts_with(traits(trainer).family) && profile.rules != nullptr)
        all_offers.push_back(profile.offers);
    for (const int64_t pp : {1, 4}) {
      CAPTURE(pp);
      std::map<std::string, std::multiset<std::string>> written;  // by axis
      for (const AxisValue& value : axis_values()) {
        Strategy s = example(model, {.pp = pp, .ep = 2, .dp = 4, .tp = 4});
        s.sequence_parallel = true;  // Megatron Core takes no mixture otherwise
        value.set(s);
        // Nor the optimizer on the host where its states are whole.
        if (value.axis == "offload " && offers.has_zero(1, pp)) s.zero = 1;
        s.layers_per_stage = strategy::even_split(model.num_layers(), pp * s.mesh.vpp);
        if (!strategy::contradictions(s, model).empty()) continue;
        CAPTURE(to_json(s).dump());
        const Exported exported = export_strategy(trainer, model, s);
        CAPTURE(exported.cannot.size() > 0 ? exported.cannot.front() : "");
        const bool refused = std::ranges::any_of(exported.cannot, [&](const std::string& line) {
          return line.rfind(value.axis, 0) == 0;
        });
        // Its rules say more of it: torchtitan leaves experts whole under expert parallelism.
        const bool is_ruled_out = trainer == Trainer::kTorchtitan && s.mesh.etp > 1;
        // Whatever one of the profiles of a software runs.
        const bool is_run = std::ranges::any_of(all_offers, [&](const cost::Offers& offers) {
          return is_offered(offers, s, value.axis);
        });
        CHECK(refused == (!is_run || is_ruled_out));
        CHECK(exported.text.empty() == refused);
        if (refused) continue;
        std::string all = exported.text;
        for (const std::string& line : exported.differs) all += line + "\n";
        written[value.axis].insert(all);
      }
      // What would leave the same words twice would be dropped without a word. Without a pipeline
      // schedules are one; the profile of Megatron-Bridge hides exchanges in pairs or without.
      for (const auto& [axis, texts] : written)
        for (const std::string& text : texts) {
          CAPTURE(axis);
          CAPTURE(text);
          CHECK((texts.count(text) == 1 ||
                 (axis == "schedule " && (pp == 1 || trainer == Trainer::kMegatronBridge))));
        }
    }
  }
}

TEST_CASE("torchtitan: more than two chunks a rank follow from the layers of a stage") {
  const model::Model model = model::load_model("qwen3-30b-a3b");  // 48 layers
  Strategy s = example(model, {.pp = 4, .ep = 2, .dp = 2});
  s.schedule = PipelineSchedule::kInterleaved;
  const auto chunks = [&](int64_t vpp) {
    s.mesh.vpp = vpp;
    s.layers_per_stage = strategy::even_split(48, 4 * vpp);
    return to_torchtitan({model, s});
  };
  const char* const flag = "--parallelism.pipeline_parallel_layers_per_stage";
  CHECK(flags_of_script(chunks(4).text).at(flag) == "3");
  CHECK(flags_of_script(chunks(2).text).count(flag) == 0);
  // 48 layers over 20 stages: 3 a stage would be 16 of them.
  CHECK(says(chunks(5).cannot, "vpp 5: torchtitan infers the chunks from the layers of one"));
}

TEST_CASE("NeMo: the same degrees, and parts of a recomputation by module") {
  const model::Model model = model::load_model("deepseek-v3");
  Strategy s = example(model, {.pp = 8, .ep = 16, .dp = 32});
  s.recompute = Recompute::kAttentionAndExperts;
  const std::string text = to_nemo({model, s}).text;
  CHECK(text.find("pipeline_model_parallel_size: 8\n") != std::string::npos);
  CHECK(text.find("expert_model_parallel_size: 16\n") != std::string::npos);
  CHECK(text.find("recompute_modules: [\"core_attn\", \"mla_up_proj\", \"moe_act\", \"mlp\"]") !=
        std::string::npos);
}

// A strategy, and the same with one field changed, in a place where it matters.
TEST_CASE("a field that is changed is written, noted or refused by every exporter") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy base = example(model, {.pp = 2, .ep = 2, .dp = 4, .tp = 2, .cp = 2}, 2, 8);
  base.sequence_parallel = true;
  const auto even = [&](Strategy& s) {
    s.layers_per_stage = strategy::even_split(32, s.mesh.num_virtual_stages());
  };
  const auto batch = [](Strategy& s) {
    s.global_batch_sequences = s.mesh.dp * s.micro_batch_sequences * s.num_micro_batches;
  };
  struct Change {
    std::string field;
    std::function<void(Strategy&)> from, to;
  };
  const auto nothing = [](Strategy&) {};
  const auto limited = [](Strategy& s) { s.capacity.factor = 1.25; };
  const std::vector<Change> changes{
      {"pp", nothing, [&](Strategy& s) { s.mesh.pp = 4, even(s); }},
      {"ep", nothing, [](Strategy& s) { s.mesh.ep = 4; }},
      {"dp", nothing, [&](Strategy& s) { s.mesh.dp = 8, batch(s); }},
      {"vpp", nothing,
       [&](Strategy& s) { s.mesh.vpp = 2, s.schedule = PipelineSchedule::kInterleaved, even(s); }},
      {"etp", nothing, [](Strategy& s) { s.mesh.etp = 2; }},
      {"tp", nothing, [](Strategy& s) { s.mesh.tp = 4; }},
      {"cp", nothing, [](Strategy& s) { s.mesh.cp = 4; }},
      {"layers-per-stage", nothing,
       [](Strategy& s) {
         s.layers_per_stage = {17, 15};
       }},
      {"schedule", nothing, [](Strategy& s) { s.schedule = PipelineSchedule::kGPipe; }},
      {"recompute", nothing, [](Strategy& s) { s.recompute = Recompute::kFull; }},
      {"recompute by stage", nothing,
       [](Strategy& s) {
         s.recompute_per_stage = {Recompute::kFull, Recompute::kNone};
       }},
      {"precision", nothing, [](Strategy& s) { s.precision = strategy::Precision::kFp32; }},
      {"sequence", nothing, [](Strategy& s) { s.sequence = 8192; }},
      {"global-batch", nothing, [&](Strategy& s) { s.num_micro_batches = 16, batch(s); }},
      {"micro-batch", nothing,
       [](Strategy& s) { s.micro_batch_sequences = 4, s.num_micro_batches = 4; }},
      {"num-micro-batches", nothing, [&](Strategy& s) { s.num_micro_batches = 4, batch(s); }},
      {"capacity-factor", nothing, limited},
      {"drop", limited,
       [](Strategy& s) { s.capacity = {.factor = 1.25, .drop = strategy::Drop::kPosition}; }},
      {"pad-to-capacity", limited,
       [](Strategy& s) { s.capacity = {.factor = 1.25, .pads = true}; }},
      {"zero", nothing, [](Strategy& s) { s.zero = 1; }},
      {"sequence-parallel", nothing, [](Strategy& s) { s.sequence_parallel = false; }},
      {"offload", nothing, [](Strategy& s) { s.offload = strategy::Offload::kOptimizer; }},
      {"placement", nothing,
       [](Strategy& s) { s.placement = strategy::Placement::kPipelineInside; }},
      {"all-to-all", nothing, [](Strategy& s) { s.all_to_all = strategy::AllToAll::kHalo; }},
      {"all-to-all-chunk", nothing, [](Strategy& s) { s.all_to_all_chunk_bytes = 65536; }},
      {"reduction", nothing, [](Strategy& s) { s.reduction = strategy::Reduction::kHierarchical; }},
      {"reductions", nothing,
       [](Strategy& s) { s.reduction_start = strategy::ReductionStart::kEnd; }},
      {"context-exchange", nothing,
       [](Strategy& s) { s.context_exchange = strategy::ContextExchange::kGather; }},
      {"moe-schedule", nothing,
       [](Strategy& s) { s.moe_schedule = strategy::MoeSchedule::kChunked; }},
      {"moe-chunks", nothing, [](Strategy& s) { s.moe_chunks = 2; }},
      {"redundant-experts", nothing, [](Strategy& s) { s.redundant_experts = 2; }},
      {"expert-compression", nothing, [](Strategy& s) { s.expert_compression = 50; }},
      {"mtp-depth", nothing, [](Strategy& s) { s.mtp_depth = 1; }}};
  for (const Trainer trainer : kTrainers) {
    CAPTURE(std::string(traits(trainer).name));
    const auto said = [&](const Strategy& s) {
      const Exported exported = export_strategy(trainer, model, s);
      std::string all = exported.text;
      for (const auto& lines : {exported.differs, exported.cannot})
        for (const std::string& line : lines) all += line + "\n";
      return all;
    };
    const Fields names = fields_of(base);
    for (size_t i = 0; i < names.size(); ++i) {
      if (place_of(trainer, i) == Place::kSilent) continue;
      CAPTURE(std::string(names[i].name));
      const auto change = std::ranges::find(changes, names[i].name, &Change::field);
      REQUIRE(change != changes.end());
      Strategy before = base;
      change->from(before);
      Strategy after = before;
      change->to(after);
      CHECK(said(before) != said(after));
    }
  }
}

TEST_CASE("Megatron-LM: a start script with launcher, environment and lines to fill in") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const cluster::Cluster machine = cluster::load_cluster("dgx-h100");
  Strategy s = example(model, {.pp = 2, .ep = 8, .dp = 8, .tp = 2});
  s.sequence_parallel = true;
  s.mtp_depth = 1;
  s.layers_per_stage = {17, 15};
  const std::string text = export_strategy(Trainer::kMegatron, model, s, nullptr, &machine).text;
  CHECK(text.starts_with(
      "#!/usr/bin/env bash\n# mixtral-8x7b on 32 devices (4 x 8, dgx-h100), for "));
  for (const char* part :
       {"Megatron-LM d98e8a64", "torchrun --nnodes=4 --nproc-per-node=8 ", "srun --nodes=4",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "${NODE_RANK:?", "${LR:?",
        "--mtp-num-layers 1 \\\n", "--pipeline-model-parallel-layout 'Et*17|t*15mL' \\\n"}) {
    CAPTURE(std::string(part));
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("models are said as they are, or refused by name") {
  const auto exported = [](const char* name, Trainer trainer) {
    const model::Model model = model::load_model(name);
    return export_strategy(trainer, model, example(model, {.pp = 1, .ep = 8, .dp = 8}));
  };
  auto flags = flags_of(exported("gpt-oss-20b", Trainer::kMegatron).text);
  CHECK(flags.at("--window-size") == "'(127,0)'");
  CHECK(flags.at("--window-attn-skip-freq").starts_with("'([1]*1+[0]*1+"));
  CHECK(flags.at("--softmax-type") == "learnable");
  CHECK(flags.at("--position-embedding-type") == "yarn");
  CHECK(flags.at("--rotary-scaling-factor") == "32");
  CHECK(flags.count("--no-yarn-correction-range-round-to-int") == 1);
  CHECK(flags.count("--quick-geglu") == 1);
  CHECK(flags.at("--activation-func-clamp-value") == "7.0");
  CHECK(flags.count("--disable-bias-linear") == 0);
  flags = flags_of(exported("deepseek-v3", Trainer::kMegatron).text);
  CHECK(flags.at("--rope-type") == "yarn");
  CHECK(flags.at("--rotary-scaling-factor") == "40");
  CHECK(flags.at("--mscale-all-dim") == "1");
  flags = flags_of(exported("qwen3-next-80b-a3b", Trainer::kMegatron).text);
  CHECK(flags.at("--experimental-attention-variant") == "gdn");
  CHECK(flags.at("--linear-attention-freq").starts_with("'([1]*3+[0]*1+"));
  CHECK(flags.count("--moe-shared-expert-gate") == 1);
  flags = flags_of(exported("llama-4-maverick", Trainer::kMegatron).text);
  CHECK(flags.at("--no-rope-freq").starts_with("'([0]*3+[1]*1+"));
  CHECK(flags.count("--moe-apply-probs-on-input") == 1);
  for (const char* name : {"olmoe-1b-7b", "kimi-k2"}) {
    CHECK(says(exported(name, Trainer::kMegatron).cannot, "Megatron-LM has no flag"));
    CHECK(exported(name, Trainer::kMegatronBridge).cannot.empty());
  }
}

}  // namespace piper::exporting
