// piper place: which rank of a strategy on which node of an allocation, and which nodes to ask for.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/command.h>
#include <piper/cli/place_report.h>
#include <piper/cli/validators.h>
#include <piper/cluster/hostlist.h>
#include <piper/plan/placed_exchange.h>
#include <piper/report/progress.h>

#include <iostream>
#include <memory>
#include <numeric>

namespace piper::cli {
namespace {

struct Flags {
  StrategyFlags strategy;
  std::string nodes, free, topology, slots, rankfile, hostfile;
  std::vector<std::string> levels;
  int64_t count = 0, first_number = 0, cores_per_rank = 1;
  bool json = false;
};

void check(const Flags& f) {
  std::vector<std::string> problems;
  if (f.nodes.empty() == f.free.empty())
    problems.emplace_back(f.nodes.empty() ? "--nodes is missing: the nodes of the job, such as "
                                            "\"$SLURM_JOB_NODELIST\"; or --free "
                                            "with --count, to choose some"
                                          : "--nodes beside --free; allowed: one of them");
  if (f.free.empty() != (f.count == 0))
    problems.emplace_back(f.free.empty() ? "--count without --free; allowed: both or neither"
                                         : "--free without --count: how many nodes are wanted");
  if (!f.topology.empty() && f.first_number != 0)
    problems.emplace_back("--first-number beside --topology: the file says where nodes are");
  if (f.topology.empty() && !f.levels.empty())
    problems.emplace_back("--levels without --topology: the cluster's own levels are taken");
  if (!problems.empty()) throw InvalidInput(problems);
}

cluster::Allocation allocation_of(const Flags& f, const cluster::Cluster& machine) {
  const std::string flag = f.nodes.empty() ? "--free" : "--nodes";
  const std::vector<std::string> nodes =
      cluster::expand_hostlist(f.nodes.empty() ? f.free : f.nodes, flag);
  const cluster::GroupsOfNodes groups =
      f.topology.empty() ? cluster::groups_by_number(machine, nodes, f.first_number)
                         : cluster::read_node_groups(f.topology);
  const std::vector<int64_t> slots =
      f.slots.empty() ? std::vector<int64_t>(nodes.size(), machine.devices_per_node())
                      : cluster::expand_tasks_per_node(f.slots, nodes.size(), "--ranks-per-node");
  return cluster::allocate(machine, nodes, groups, slots, f.levels);
}

void choose(const Flags& f, std::span<const plan::RankGroup> groups, int32_t num_ranks,
            PlaceReport& report) {
  if (f.free.empty()) return;
  report.num_free = std::ssize(report.allocation.nodes);
  report.choice = plan::choose_nodes(report.allocation, f.count, groups, num_ranks);
  std::vector<cluster::AllocatedNode> nodes;
  for (const int32_t n : report.choice->nodes)
    nodes.push_back(report.allocation.nodes[static_cast<size_t>(n)]);
  report.allocation.nodes = std::move(nodes);
}

int run(const Flags& f) {
  check(f);
  const Priced priced = priced_from_flags(f.strategy);
  const auto num_ranks = static_cast<int32_t>(priced.strategy.mesh.world());
  PlaceReport report{.allocation = allocation_of(f, priced.cluster), .strategy = priced.strategy};
  if (report.allocation.num_slots() < num_ranks)
    throw InvalidInput(
        fmt::format("the strategy has {} ranks, the {} nodes take {}; allowed: at most that many",
                    num_ranks, report.allocation.nodes.size(), report.allocation.num_slots()));
  report::Progress bar({.label = "place", .total = 3, .unit = "parts"});
  const std::vector<plan::RankGroup> groups = plan::rank_traffic(priced.model, priced.strategy);
  choose(f, groups, num_ranks, report);
  bar.set(1);
  report.slots = plan::slots_of(report.allocation);
  report.placing = plan::place_ranks(report.slots, groups, num_ranks);
  bar.set(2);
  plan::RankSlots given(static_cast<size_t>(num_ranks));
  std::iota(given.begin(), given.end(), 0);
  report.given = plan::price_placement(report.slots, groups, given);
  report.chosen = plan::price_placement(report.slots, groups, report.placing.ranks);
  report.pair_bytes = plan::exchange_pair_bytes(priced.model, priced.strategy);
  const auto played = [&](const plan::RankSlots& ranks) {
    return plan::placed_exchange_seconds(report.allocation, report.slots, groups, ranks,
                                         report.pair_bytes, priced.strategy);
  };
  report.given_exchange = played(given);
  report.chosen_exchange = played(report.placing.ranks);
  bar.set(3);
  bar.finish();
  const std::vector<exporting::RankHost> hosts = report.rank_hosts();
  if (!f.rankfile.empty())
    write_text_file(f.rankfile, exporting::open_mpi_rankfile(hosts, f.cores_per_rank));
  if (!f.hostfile.empty()) write_text_file(f.hostfile, exporting::slurm_hostfile(hosts));
  if (f.json) {
    std::cout << to_json(report).dump(2) << "\n";
    return 0;
  }
  fmt::print("{}", to_text(report));
  if (!f.rankfile.empty()) fmt::print("\nmpirun -n {} --rankfile {} ...\n", num_ranks, f.rankfile);
  if (!f.hostfile.empty())
    fmt::print("\nSLURM_HOSTFILE={} srun -n {} --distribution=arbitrary ...\n", f.hostfile,
               num_ranks);
  return 0;
}

}  // namespace

Run add_place(CLI::App& command) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  command.add_option("--nodes", f.nodes,
                     "nodes of the job in their order: node[001-004,017],x12 "
                     "(\"$SLURM_JOB_NODELIST\")");
  command.add_option("--free", f.free, "instead: nodes to choose from; with --count");
  command.add_option("--count", f.count, "how many nodes to choose")
      ->check(CLI::Range(int64_t{1}, cluster::kMostHosts));
  command.add_option("--topology", f.topology,
                     "Slurm's topology.conf, or JSON {\"node1\": [\"switch 1\", \"rack 1\"]} "
                     "(the cluster's levels, by the nodes' numbers)");
  command
      .add_option("--levels", f.levels,
                  "which levels of the cluster the topology's are, one for each, innermost first: "
                  "cabinet,system (from the first above nodes)")
      ->delimiter(',');
  command
      .add_option("--first-number", f.first_number,
                  "number of the machine's first node, without --topology (0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32));
  command.add_option("--ranks-per-node", f.slots,
                     "one count, or each node's: 8(x3),4 (the cluster's devices of a node)");
  command.add_option("--rankfile", f.rankfile, "write a rankfile of Open MPI there")
      ->check(writable_file());
  command
      .add_option("--cores-per-rank", f.cores_per_rank,
                  "cores that a rank's line of the rankfile names (1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 12));
  command
      .add_option("--hostfile", f.hostfile,
                  "write a SLURM_HOSTFILE for srun --distribution=arbitrary there")
      ->check(writable_file());
  command.add_flag("--json", f.json, "print everything as JSON");
  add_strategy_flags(command, f.strategy);
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
