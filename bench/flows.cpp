// piper bench flows: how fast the simulator of collectives is: messages a second on one core, and
// how long an algorithm takes to price.
#include <bench/benches.h>
#include <bench/fabric_flag.h>
#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/collective/algorithms.h>
#include <piper/report/table.h>
#include <piper/sim/fabric_shapes.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace piper::cli {
namespace {

struct FlowsFlags {
  std::string cluster = "frontier", fabric;
  std::vector<int64_t> nodes{8, 64, 256};
  std::vector<std::string> algorithms{"node-aware", "pairwise", "halo-printed", "halo"};
  int64_t bytes = 1024, peers = 0;
  int repeats = 3;
  bool json = false;
};

struct FlowRow {
  strategy::AllToAll algorithm;
  int64_t num_members = 0, num_steps = 0, num_messages = 0, num_events = 0;
  double write_seconds = 0, simulate_seconds = 0, predicted_seconds = 0;
  double flows_per_second() const { return static_cast<double>(num_messages) / simulate_seconds; }
  // Sends, receives, copies and additions.
  double steps_per_second() const { return static_cast<double>(num_steps) / simulate_seconds; }
  double price_seconds() const { return write_seconds + simulate_seconds; }
};

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// By distance to the right: whether a member has anything for that one.
std::vector<char> partners(int64_t num_members, int64_t num_peers) {
  if (num_peers == 0 || num_peers >= num_members)
    return std::vector<char>(static_cast<size_t>(num_members), 1);
  std::vector<char> speaks(static_cast<size_t>(num_members));
  for (int64_t i = 0; i < num_peers; ++i)
    speaks[static_cast<size_t>(1 + i * (num_members - 1) / num_peers)] = 1;
  return speaks;
}

FlowRow measure(strategy::AllToAll algorithm, const sim::Fabric& fabric,
                const collective::Topology& topology, const FlowsFlags& flags) {
  FlowRow row{.algorithm = algorithm, .num_members = fabric.num_members()};
  const std::vector<char> speaks = partners(row.num_members, flags.peers);
  const auto count = [&](int64_t from, int64_t to) {
    const int64_t distance = to >= from ? to - from : to - from + row.num_members;
    return speaks[static_cast<size_t>(distance)] ? flags.bytes : 0;
  };
  auto start = std::chrono::steady_clock::now();
  const sim::FlowProgram program = sim::flow_program(row.num_members, [&](int64_t member) {
    return collective::all_to_all(algorithm, member, topology, count);
  });
  row.write_seconds = since(start);
  row.num_steps = static_cast<int64_t>(program.num_steps());
  std::vector<double> seconds;
  for (int i = 0; i < flags.repeats; ++i) {
    start = std::chrono::steady_clock::now();
    const sim::SimulatedFlows simulated = sim::simulate_flows(program, fabric);
    seconds.push_back(since(start));
    row.num_messages = simulated.num_messages;
    row.num_events = simulated.num_events;
    row.predicted_seconds = simulated.seconds;
  }
  std::ranges::sort(seconds);
  row.simulate_seconds = seconds[seconds.size() / 2];
  return row;
}

int run_flows(const FlowsFlags& flags) {
  const cluster::Cluster cluster = cluster::load_cluster(flags.cluster);
  std::vector<FlowRow> rows;
  for (const int64_t nodes : flags.nodes) {
    sim::Fabric fabric;
    collective::Topology topology;
    if (flags.fabric.empty()) {
      const sim::Placement placement = sim::packed(cluster, nodes);
      fabric = sim::fabric_of(cluster, placement);
      topology = sim::topology_of(cluster, placement);
    } else {
      fabric = shaped_fabric(parse_fabric_shape(flags.fabric), cluster, nodes);
      topology = sim::topology_of(fabric);
    }
    for (const strategy::AllToAll algorithm : strategy::kAllToAlls)
      if (std::ranges::find(flags.algorithms, strategy::name(algorithm)) != flags.algorithms.end())
        rows.push_back(measure(algorithm, fabric, topology, flags));
  }
  double best = 0;
  Json list = Json::array();
  report::Table table;
  using report::Align;
  table.columns = {{"algorithm"},
                   {"members", Align::kRight},
                   {"steps", Align::kRight},
                   {"messages", Align::kRight},
                   {"write", Align::kRight},
                   {"simulate", Align::kRight},
                   {"price", Align::kRight},
                   {"steps/s", Align::kRight},
                   {"messages/s", Align::kRight},
                   {"predicted", Align::kRight}};
  for (const FlowRow& row : rows) {
    best = std::max(best, row.flows_per_second());
    list.push_back({{"algorithm", strategy::name(row.algorithm)},
                    {"num_members", row.num_members},
                    {"num_steps", row.num_steps},
                    {"num_messages", row.num_messages},
                    {"num_events", row.num_events},
                    {"write_seconds", row.write_seconds},
                    {"simulate_seconds", row.simulate_seconds},
                    {"price_seconds", row.price_seconds()},
                    {"steps_per_second", row.steps_per_second()},
                    {"flows_per_second", row.flows_per_second()},
                    {"predicted_seconds", row.predicted_seconds}});
    table.rows.push_back({strategy::name(row.algorithm), std::to_string(row.num_members),
                          format_count(static_cast<double>(row.num_steps)),
                          format_count(static_cast<double>(row.num_messages)),
                          format_seconds(row.write_seconds), format_seconds(row.simulate_seconds),
                          format_seconds(row.price_seconds()), format_count(row.steps_per_second()),
                          format_count(row.flows_per_second()),
                          format_seconds(row.predicted_seconds)});
  }
  if (flags.json) {
    say_json(Json{{"cluster", cluster.name},
                  {"fabric", flags.fabric.empty() ? "as described" : flags.fabric},
                  {"bytes_per_pair", flags.bytes},
                  {"num_peers", flags.peers == 0 ? Json("all") : Json(flags.peers)},
                  {"best_flows_per_second", best},
                  {"rows", list}});
    return 0;
  }
  say("{}{}, {} a pair{}, one core\n{}", cluster.name,
      flags.fabric.empty() ? "" : ", its nodes in a " + flags.fabric,
      format_bytes(static_cast<double>(flags.bytes)),
      flags.peers == 0 ? "" : fmt::format(", {} peers of each member", flags.peers),
      Lines{report::to_text(table)});
  return 0;
}

}  // namespace

Run add_bench_flows(Subcommand command) {
  auto flags = std::make_shared<FlowsFlags>();
  command.add_option("--cluster", flags->cluster, "built-in cluster or file");
  command
      .add_option("--fabric", flags->fabric,
                  "join the cluster's nodes by another network: fat-tree, rails, dragonfly or "
                  "two-centres, with `:2` uplinks twice as narrow as what lies below")
      .type_name("SHAPE[:RATIO]");
  command.add_option("--nodes", flags->nodes, "packed nodes of each row")
      .delimiter(',')
      .check(positive_number());
  std::vector<std::string> names;
  for (const strategy::AllToAll algorithm : strategy::kAllToAlls)
    names.emplace_back(strategy::name(algorithm));
  command.add_option("--algorithms", flags->algorithms, "rows for each number of nodes")
      .delimiter(',')
      .check(one_of(names));
  command.add_option("--bytes", flags->bytes, "bytes for every pair").check(positive_number());
  command.add_option("--peers", flags->peers, "others that a member has bytes for (all)")
      .check(positive_number());
  command.add_option("--repeats", flags->repeats, "simulations of each row; the median counts")
      .check(integer_in(1, 100));
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_flows(*flags); };
}

}  // namespace piper::cli
