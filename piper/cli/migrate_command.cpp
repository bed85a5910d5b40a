// piper migrate: what moving experts costs: the paper's Table IV, and the same for any model on any
// machine.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/read_model.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/paper/piper.h>
#include <piper/cost/rank_parameters.h>
#include <piper/report/table.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

namespace piper::cli {
namespace {

using report::Align;

// What the paper counts of a parameter, and what really travels: gradients are dead between steps.
constexpr double kPaperBytes = cost::paper::kBytesPerParameter;

struct Flags {
  std::string model, cluster;
  std::vector<std::string> ignore;
  int64_t ep = 8;
  bool json = false;
};

Json paper_json() {
  Json rows = Json::array();
  for (const cost::paper::MigrationRow& row : cost::paper::table_iv())
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
  for (const cost::paper::MigrationRow& row : cost::paper::table_iv()) {
    const auto size = [&](double value) { return fmt::format("{:.2f} {}", value, row.unit); };
    const auto time = [](double value) { return fmt::format("{:.1f} ms", value); };
    table.rows.push_back({row.model, std::to_string(row.shape.num_experts),
                          std::to_string(row.shape.hidden), std::to_string(row.shape.expert_ffn),
                          size(row.printed_size), size(row.size()), time(row.printed_milliseconds),
                          time(row.milliseconds()), size(row.size() * row.moved_part()),
                          time(row.milliseconds() * row.moved_part())});
  }
  fmt::print(
      "all experts of a layer change their GPU, 8 GPUs, 50 GB/s (each row in the unit that the "
      "paper used): what one GPU sends\n{}"
      "16 bytes a parameter, as the paper counts, with gradients; 12 are what travels between two "
      "steps (master, moments)\nmilliseconds follow from the printed, rounded sizes; GLaM's size "
      "is a misprint for 103.08, DeepSeek-V2's for 7.03\n",
      report::to_text(table));
}

// One kind of mixture layer of the model on the machine.
struct Row {
  std::string layers;
  int64_t num_experts = 0;
  double expert_bytes = 0;                // that travel of one expert
  double paper_bytes = 0, bytes = 0;      // that one GPU sends when all experts move
  double paper_seconds = 0, seconds = 0;  // of that exchange
  double expert_seconds = 0;              // one expert to a neighbour
};

std::vector<Row> rows_of(const model::Model& model, const cluster::Cluster& machine, int64_t ep) {
  if (ep > machine.num_devices())
    throw InvalidInput(fmt::format("--ep is {}; allowed: at most the {} devices of {}", ep,
                                   machine.num_devices(), machine.name));
  std::vector<Row> rows;
  const cost::Group group{.first = 0, .stride = 1, .size = ep};
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
    const auto of_rank = static_cast<double>(cost::expert_parameters(model, layer, ep));
    const auto moved = static_cast<double>(cost::state_bytes(strategy::Precision::kBf16).moved());
    const auto pairs = static_cast<double>(ep);
    Row row{.layers = begins == layer ? std::to_string(layer) : fmt::format("{}-{}", begins, layer),
            .num_experts = f.num_experts};
    row.expert_bytes =
        static_cast<double>(cost::moved_expert_bytes(model, layer, strategy::Precision::kBf16));
    row.paper_bytes = of_rank * kPaperBytes;
    row.bytes = of_rank * moved;
    // As the paper has it: an all-to-all of all experts, an equal part to every member.
    row.paper_seconds = cost::all_to_all_seconds(machine, group, row.paper_bytes / pairs);
    row.seconds = cost::all_to_all_seconds(machine, group, row.bytes / pairs);
    row.expert_seconds = ep > 1 ? cost::point_to_point_seconds(machine, 0, 1, row.expert_bytes) : 0;
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw InvalidInput(model.name + " is dense: it has no experts to move");
  return rows;
}

int run(const Flags& flags) {
  if (flags.model.empty() != flags.cluster.empty())
    throw InvalidInput(
        "--model and --cluster go together; without both the paper's table is shown");
  if (flags.model.empty()) {
    if (flags.json)
      std::cout << paper_json().dump(2) << "\n";
    else
      print_paper();
    return 0;
  }
  const model::Model model = read_model(flags.model, flags.ignore);
  const cluster::Cluster machine = cluster::load_cluster(flags.cluster);
  const std::vector<Row> rows = rows_of(model, machine, flags.ep);
  if (flags.json) {
    Json json = Json::array();
    for (const Row& row : rows)
      json.push_back({{"layers", row.layers},
                      {"num_experts", row.num_experts},
                      {"expert_bytes", row.expert_bytes},
                      {"paper_bytes", row.paper_bytes},
                      {"bytes", row.bytes},
                      {"paper_seconds", row.paper_seconds},
                      {"seconds", row.seconds},
                      {"expert_seconds", row.expert_seconds}});
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  report::Table table;
  table.columns = {{"layers"},
                   {"experts", Align::kRight},
                   {"all: 16 bytes", Align::kRight},
                   {"time", Align::kRight},
                   {"all: 12 bytes", Align::kRight},
                   {"time", Align::kRight},
                   {"one expert", Align::kRight},
                   {"time", Align::kRight}};
  for (const Row& row : rows)
    table.rows.push_back({row.layers, std::to_string(row.num_experts),
                          format_bytes(row.paper_bytes), format_seconds(row.paper_seconds),
                          format_bytes(row.bytes), format_seconds(row.seconds),
                          format_bytes(row.expert_bytes), format_seconds(row.expert_seconds)});
  fmt::print(
      "{} on {}, ep {}: what one GPU sends when all experts of a layer change their rank (an "
      "all-to-all), and one expert to a neighbour\n{}"
      "16 bytes a parameter, as the paper counts, with gradients; 12 are what travels between two "
      "steps (master, moments)\n",
      model.name, machine.name, flags.ep, report::to_text(table));
  return 0;
}

}  // namespace

Run add_migrate(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  command.add_option("--model", flags->model, "name of a built-in model, or path to a config.json");
  command.add_option("--ignore", flags->ignore, "key of the config to read as if it were absent")
      .one_each();
  command.add_option("--cluster", flags->cluster,
                     "name of a built-in cluster, or path to its JSON");
  command.add_option("--ep", flags->ep, "ranks of an expert group")
      .check(integer_in(1, 4096))
      .show_default();
  command.add_flag("--json", flags->json, "print the result as JSON");
  command.footer("Without --model and --cluster: Table IV of the Piper paper beside its formula.");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
