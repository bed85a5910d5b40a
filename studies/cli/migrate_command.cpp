// piper-studies migrate: Table IV of the Piper paper beside its formula, and the paper's count of
// bytes for any model on any machine, beside what travels.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/migrated_layers.h>
#include <piper/cli/read_model.h>
#include <piper/report/table.h>
#include <studies/paper/piper.h>

#include <memory>
#include <string>
#include <vector>

namespace piper::studies {
namespace {

using cli::MigratedLayers;
using report::Align;

struct MigrateFlags {
  cli::MigrationFlags migration;
  bool json = false;
};

Json paper_json() {
  Json rows = Json::array();
  for (const paper::MigrationRow& row : paper::table_iv())
    rows.push_back({{"model", row.model},
                    {"unit", row.unit},
                    {"num_experts", row.shape.num_experts},
                    {"hidden", row.shape.hidden},
                    {"expert_ffn", row.shape.expert_ffn},
                    {"printed_size", row.printed_size},
                    {"size", row.size()},
                    {"printed_milliseconds", row.printed_milliseconds},
                    {"milliseconds", row.milliseconds()},
                    {"moved_size", row.size() * row.moved_part()},
                    {"moved_milliseconds", row.milliseconds() * row.moved_part()}});
  return rows;
}

void print_paper() {
  report::Table table;
  table.columns = {{"Table IV"},
                   {"experts", Align::kRight},
                   {"d", Align::kRight},
                   {"d_ffn", Align::kRight},
                   {"printed", Align::kRight},
                   {"16 bytes", Align::kRight},
                   {"printed", Align::kRight},
                   {"16 bytes", Align::kRight},
                   {"12 bytes", Align::kRight},
                   {"12 bytes", Align::kRight}};
  for (const paper::MigrationRow& row : paper::table_iv()) {
    const auto size = [&](double value) { return fmt::format("{:.2f} {}", value, row.unit); };
    const auto time = [](double value) { return fmt::format("{:.1f} ms", value); };
    table.rows.push_back({row.model, std::to_string(row.shape.num_experts),
                          std::to_string(row.shape.hidden), std::to_string(row.shape.expert_ffn),
                          size(row.printed_size), size(row.size()), time(row.printed_milliseconds),
                          time(row.milliseconds()), size(row.size() * row.moved_part()),
                          time(row.milliseconds() * row.moved_part())});
  }
  cli::say(
      "all experts of a layer change their GPU, 8 GPUs, 50 GB/s (each row in the unit that the "
      "paper used): what one GPU sends\n{}"
      "16 bytes a parameter, as the paper counts, with gradients; 12 are what travels between two "
      "steps (master, moments)\nmilliseconds follow from the printed, rounded sizes; GLaM's size "
      "is a misprint for 103.08, DeepSeek-V2's for 7.03\n",
      cli::Lines{report::to_text(table)});
}

// What one GPU sends by the paper's count: gradients, which are dead between two steps, as well.
double paper_bytes(const MigratedLayers& row) {
  return static_cast<double>(row.parameters) * paper::kBytesPerParameter;
}

int migrate_model(const MigrateFlags& flags) {
  const cli::MigrationFlags& asked = flags.migration;
  const model::Model model = cli::read_model(asked.model, asked.ignore);
  const cluster::Cluster machine = cluster::load_cluster(asked.cluster);
  const std::vector<MigratedLayers> rows = cli::migrated_layers(model, machine, asked.ep);
  const auto paper_seconds = [&](const MigratedLayers& row) {
    return cli::migration_seconds(machine, asked.ep, paper_bytes(row));
  };
  if (flags.json) {
    Json json = Json::array();
    for (const MigratedLayers& row : rows)
      json.push_back({{"layers", row.layers},
                      {"num_experts", row.num_experts},
                      {"paper_bytes", paper_bytes(row)},
                      {"bytes", row.bytes},
                      {"paper_seconds", paper_seconds(row)},
                      {"seconds", row.seconds}});
    cli::say_json(json);
    return 0;
  }
  report::Table table;
  table.columns = {{"layers"},
                   {"experts", Align::kRight},
                   {"all: 16 bytes", Align::kRight},
                   {"time", Align::kRight},
                   {"all: 12 bytes", Align::kRight},
                   {"time", Align::kRight}};
  for (const MigratedLayers& row : rows)
    table.rows.push_back({row.layers, std::to_string(row.num_experts),
                          format_bytes(paper_bytes(row)), format_seconds(paper_seconds(row)),
                          format_bytes(row.bytes), format_seconds(row.seconds)});
  cli::say(
      "{} on {}, ep {}: what one GPU sends when all experts of a layer change their rank (an "
      "all-to-all)\n{}"
      "16 bytes a parameter, as the paper counts, with gradients; 12 are what travels between two "
      "steps (master, moments)\n",
      model.name, machine.name, asked.ep, cli::Lines{report::to_text(table)});
  return 0;
}

int run_migrate(const MigrateFlags& flags) {
  const cli::MigrationFlags& asked = flags.migration;
  if (asked.model.empty() != asked.cluster.empty())
    throw InvalidInput(
        "--model and --cluster go together; without both the paper's table is shown");
  if (!asked.model.empty()) return migrate_model(flags);
  if (flags.json)
    cli::say_json(paper_json());
  else
    print_paper();
  return 0;
}

}  // namespace

cli::Run add_migrate(cli::Subcommand command) {
  auto flags = std::make_shared<MigrateFlags>();
  cli::add_migration_flags(command, flags->migration);
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer("Without --model and --cluster: Table IV of the Piper paper beside its formula.");
  return [flags] { return run_migrate(*flags); };
}

}  // namespace piper::studies
