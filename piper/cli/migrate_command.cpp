// piper migrate: what moving experts costs, for any model on any machine.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/migrated_layers.h>
#include <piper/cli/read_model.h>
#include <piper/report/table.h>

#include <memory>

namespace piper::cli {
namespace {

using report::Align;

struct MigrateFlags {
  MigrationFlags migration;
  bool json = false;
};

int run_migrate(const MigrateFlags& flags) {
  const MigrationFlags& asked = flags.migration;
  if (asked.model.empty() || asked.cluster.empty())
    throw InvalidInput(
        "--model and --cluster are required; the table of the Piper paper moved: run "
        "piper-studies migrate");
  const model::Model model = read_model(asked.model, asked.ignore);
  const cluster::Cluster machine = cluster::load_cluster(asked.cluster);
  const std::vector<MigratedLayers> rows = migrated_layers(model, machine, asked.ep);
  if (flags.json) {
    Json json = Json::array();
    for (const MigratedLayers& row : rows)
      json.push_back({{"layers", row.layers},
                      {"num_experts", row.num_experts},
                      {"expert_bytes", row.expert_bytes},
                      {"bytes", row.bytes},
                      {"seconds", row.seconds},
                      {"expert_seconds", row.expert_seconds}});
    say_json(json);
    return 0;
  }
  report::Table table;
  table.columns = {{"layers"},
                   {"experts", Align::kRight},
                   {"all", Align::kRight},
                   {"time", Align::kRight},
                   {"one expert", Align::kRight},
                   {"time", Align::kRight}};
  for (const MigratedLayers& row : rows)
    table.rows.push_back({row.layers, std::to_string(row.num_experts), format_bytes(row.bytes),
                          format_seconds(row.seconds), format_bytes(row.expert_bytes),
                          format_seconds(row.expert_seconds)});
  say("{} on {}, ep {}: what one GPU sends when all experts of a layer change their rank (an "
      "all-to-all), and one expert to a neighbour\n{}"
      "12 bytes a parameter travel between two steps: master copy and moments\n",
      model.name, machine.name, asked.ep, Lines{report::to_text(table)});
  return 0;
}

}  // namespace

Run add_migrate(Subcommand command) {
  auto flags = std::make_shared<MigrateFlags>();
  add_migration_flags(command, flags->migration);
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_migrate(*flags); };
}

}  // namespace piper::cli
