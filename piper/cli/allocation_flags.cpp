#include <piper/cli/allocation_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cluster/hostlist.h>
#include <piper/cluster/slurm_topology.h>

namespace piper::cli {

void add_allocation_flags(Subcommand command, AllocationFlags& f) {
  command.add_option("--nodes", f.nodes,
                     "nodes of the job in their order: node[001-004,017],x12 "
                     "(\"$SLURM_JOB_NODELIST\")");
  command.add_option("--topology", f.topology,
                     "Slurm's topology.conf, or JSON {\"node1\": [\"switch 1\", \"rack 1\"]} "
                     "(the cluster's levels, by the nodes' numbers)");
  command
      .add_option("--levels", f.levels,
                  "which levels of the cluster the topology's are, one for each, innermost first: "
                  "cabinet,system (from the first above nodes)")
      .delimiter(',');
  command
      .add_option("--first-number", f.first_number,
                  "number of the machine's first node, without --topology (0)")
      .check(integer_in(0, int64_t{1} << 32));
  command.add_option("--ranks-per-node", f.slots,
                     "one count, or each node's: 8(x3),4 (the cluster's devices of a node)");
}

void add_problems(const AllocationFlags& f, std::vector<std::string>& problems) {
  if (!f.topology.empty() && f.first_number != 0)
    problems.emplace_back("--first-number beside --topology: the file says where nodes are");
  if (f.topology.empty() && !f.levels.empty())
    problems.emplace_back("--levels without --topology: the cluster's own levels are taken");
}

cluster::Allocation allocation_of(const AllocationFlags& f, const cluster::Cluster& machine,
                                  const std::string& list, const std::string& flag) {
  const std::vector<std::string> nodes = list.empty() ? cluster::expand_hostlist(f.nodes, "--nodes")
                                                      : cluster::expand_hostlist(list, flag);
  const cluster::GroupsOfNodes groups =
      f.topology.empty() ? cluster::groups_by_number(machine, nodes, f.first_number)
                         : cluster::read_node_groups(f.topology);
  const std::vector<int64_t> slots =
      f.slots.empty() ? std::vector<int64_t>(nodes.size(), machine.devices_per_node())
                      : cluster::expand_tasks_per_node(f.slots, nodes.size(), "--ranks-per-node");
  return cluster::allocate(machine, nodes, groups, slots, f.levels);
}

void add_launch_file_flags(Subcommand command, LaunchFileFlags& f) {
  command.add_output("--rankfile", f.rankfile, "write a rankfile of Open MPI there");
  command
      .add_option("--cores-per-rank", f.cores_per_rank,
                  "cores that a rank's line of the rankfile names (1)")
      .check(integer_in(1, int64_t{1} << 12));
  command.add_output("--hostfile", f.hostfile,
                     "write a SLURM_HOSTFILE for srun --distribution=arbitrary there");
}

}  // namespace piper::cli
