#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/moe_layer.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/trainer/trainer_profile.h>

#include <algorithm>
#include <utility>

namespace piper::cli {
namespace {

using strategy::Strategy;

constexpr const char* kTrainer = "piper";  // whose grouped products are priced

// One layer on one stage of so many ranks: the strategy in which such a layer stands.
Strategy strategy_of(const MoeLayerFlags& flags, const model::Model& model) {
  Strategy s{.model = model.name, .cluster = flags.cluster};
  s.mesh = {.ep = flags.ep, .etp = flags.etp, .tp = flags.tp};
  const int64_t ranks = std::max(flags.tp, s.mesh.ranks_per_expert_set());
  s.mesh.dp = std::max<int64_t>(1, ranks / flags.tp);
  s.layers_per_stage = {model.num_layers()};
  s.precision = strategy::Precision::kBf16;
  if (!flags.precision.empty())
    s.precision = parse_word<strategy::Precision>("--precision", flags.precision);
  s.sequence = flags.sequence;
  s.micro_batch_sequences = flags.micro_batch;
  s.num_micro_batches = 1;
  s.global_batch_sequences = s.mesh.dp * flags.micro_batch;
  return s;
}

void require_sound(const Strategy& s, const model::Model& model, const cluster::Cluster& machine) {
  std::vector<std::string> problems;
  const auto& [tp, etp] = std::pair{s.mesh.tp, s.mesh.etp};
  if (tp % etp != 0 && etp % tp != 0)
    problems.push_back(
        fmt::format("--tp is {} and --etp {}; allowed: one that divides the other", tp, etp));
  else
    problems = strategy::texts_of(strategy::contradictions(s, model));
  if (s.mesh.world() > machine.num_devices())
    problems.push_back(fmt::format("{} ranks; allowed: at most the {} devices of {}",
                                   s.mesh.world(), machine.num_devices(), machine.name));
  if (!problems.empty()) throw InvalidInput(problems);
}

size_t first_mixture(const model::Model& model) {
  const auto found = std::ranges::find_if(
      model.layers, [](const model::Layer& l) { return l.feed_forward.is_moe(); });
  if (found == model.layers.end())
    throw InvalidInput(model.name + " is dense: it has no mixture layer");
  return static_cast<size_t>(found - model.layers.begin());
}

}  // namespace

void add_moe_layer_flags(Subcommand command, MoeLayerFlags& flags) {
  command.add_option("--model", flags.model, "name of a built-in model, or path to a config.json")
      .required();
  command.add_option("--ignore", flags.ignore, "key of the config to read as if it were absent")
      .one_each();
  command.add_option("--cluster", flags.cluster, "name of a built-in cluster, or path to its JSON")
      .required();
  command.add_option("--tp", flags.tp, "ranks that hold the same tokens")
      .check(integer_in(1, strategy::kMaxDegree))
      .show_default();
  command.add_option("--etp", flags.etp, "ranks that share one expert's matrices")
      .check(integer_in(1, strategy::kMaxDegree))
      .show_default();
  command.add_option("--ep", flags.ep, "ranks that share the experts")
      .check(integer_in(1, 4096))
      .show_default();
  command.add_option("--sequence", flags.sequence, "tokens of a sequence; 128K is 131072")
      .takes_suffixes()
      .check(integer_in(1, int64_t{1} << 20))
      .show_default();
  command.add_option("--micro-batch", flags.micro_batch, "sequences of a micro-batch")
      .check(integer_in(1, strategy::kMaxCount))
      .show_default();
  command.add_option("--precision", flags.precision, "of products and rows (bf16)");
}

MoeLayer read_moe_layer(const MoeLayerFlags& flags) {
  MoeLayer layer{.model = read_model(flags.model, flags.ignore)};
  layer.index = first_mixture(layer.model);
  layer.feed_forward = layer.model.layers[layer.index].feed_forward;
  layer.machine = cluster::load_cluster(flags.cluster);
  layer.strategy = strategy_of(flags, layer.model);
  require_sound(layer.strategy, layer.model, layer.machine);
  layer.setting = {.hidden = static_cast<double>(layer.model.hidden),
                   .tokens = static_cast<double>(flags.micro_batch * flags.sequence),
                   .tp = flags.tp,
                   .ep = flags.ep,
                   .etp = flags.etp,
                   .grouped_efficiency = cost::load_trainer(kTrainer).grouped_efficiency,
                   .precision = layer.strategy.precision};
  return layer;
}

Json to_json(const MoeLayer& layer) {
  return {{"model", layer.model.name},
          {"cluster", layer.machine.name},
          {"layer", layer.index},
          {"tp", layer.setting.tp},
          {"etp", layer.setting.etp},
          {"ep", layer.setting.ep},
          {"ranks", layer.strategy.mesh.world()},
          {"tokens", layer.setting.tokens}};
}

std::string in_words(const MoeLayer& layer) {
  const cost::MoeSetting& s = layer.setting;
  return fmt::format(
      "{} on {}, layer {}: {} experts, {} chosen; tp {}, etp {}, ep {} on {} ranks; {} x {} tokens "
      "on every rank of a tp group",
      layer.model.name, layer.machine.name, layer.index, layer.feed_forward.num_experts,
      layer.feed_forward.top_k, s.tp, s.etp, s.ep, layer.strategy.mesh.world(),
      layer.strategy.micro_batch_sequences, layer.strategy.sequence);
}

}  // namespace piper::cli
