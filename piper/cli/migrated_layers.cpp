#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/migrated_layers.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/rank_parameters.h>
#include <piper/strategy/state_bytes.h>

#include <utility>

namespace piper::cli {

void add_migration_flags(Subcommand command, MigrationFlags& flags) {
  command.add_option("--model", flags.model, "name of a built-in model, or path to a config.json");
  command.add_option("--ignore", flags.ignore, "key of the config to read as if it were absent")
      .one_each();
  command.add_option("--cluster", flags.cluster, "name of a built-in cluster, or path to its JSON");
  command.add_option("--ep", flags.ep, "ranks of an expert group")
      .check(integer_in(1, 4096))
      .show_default();
}

double migration_seconds(const cluster::Cluster& machine, int64_t ep, double bytes) {
  return cost::all_to_all_seconds(machine, {.first = 0, .stride = 1, .size = ep},
                                  bytes / static_cast<double>(ep));
}

std::vector<MigratedLayers> migrated_layers(const model::Model& model,
                                            const cluster::Cluster& machine, int64_t ep) {
  if (ep > machine.num_devices())
    throw InvalidInput(fmt::format("--ep is {}; allowed: at most the {} devices of {}", ep,
                                   machine.num_devices(), machine.name));
  std::vector<MigratedLayers> rows;
  int32_t first = 0;
  for (int32_t layer = 0; layer < std::ssize(model.layers); ++layer) {
    const model::FeedForward& f = model.layers[static_cast<size_t>(layer)].feed_forward;
    const bool ends = layer + 1 == std::ssize(model.layers) ||
                      !(model.layers[static_cast<size_t>(layer) + 1].feed_forward == f);
    if (!ends) continue;
    const int32_t begins = std::exchange(first, layer + 1);
    if (!f.is_moe()) continue;
    if (f.num_experts % ep != 0)
      throw InvalidInput(fmt::format("--ep is {}; allowed: a divisor of the {} experts of layer {}",
                                     ep, f.num_experts, layer));
    MigratedLayers row{
        .layers = begins == layer ? std::to_string(layer) : fmt::format("{}-{}", begins, layer),
        .num_experts = f.num_experts,
        .parameters = cost::expert_parameters(model, layer, ep)};
    row.expert_bytes =
        static_cast<double>(cost::moved_expert_bytes(model, layer, strategy::Precision::kBf16));
    row.bytes = static_cast<double>(row.parameters) *
                static_cast<double>(strategy::state_bytes(strategy::Precision::kBf16).moved());
    row.seconds = migration_seconds(machine, ep, row.bytes);
    row.expert_seconds = ep > 1 ? cost::point_to_point_seconds(machine, 0, 1, row.expert_bytes) : 0;
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw InvalidInput(model.name + " is dense: it has no experts to move");
  return rows;
}

}  // namespace piper::cli
