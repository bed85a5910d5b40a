// The nodes of a job on the command line: what `piper place` and `piper plan` take them from.
#pragma once

#include <piper/cli/subcommand.h>
#include <piper/cluster/allocation.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

struct AllocationFlags {
  std::string nodes, topology, slots;
  std::vector<std::string> levels;
  int64_t first_number = 0;
};

// --nodes, --topology, --levels, --first-number, --ranks-per-node.
void add_allocation_flags(Subcommand command, AllocationFlags& flags);

// One line each; flags that only mean something beside others.
void add_problems(const AllocationFlags& flags, std::vector<std::string>& problems);

// Returns the allocation of --nodes, or of `list` where that is given (its flag's name in `flag`).
// Throws InvalidInput.
cluster::Allocation allocation_of(const AllocationFlags& flags, const cluster::Cluster& machine,
                                  const std::string& list = "", const std::string& flag = "");

// Where launchers read which rank runs where.
struct LaunchFileFlags {
  std::string rankfile, hostfile;
  int64_t cores_per_rank = 1;
};
// --rankfile, --cores-per-rank, --hostfile.
void add_launch_file_flags(Subcommand command, LaunchFileFlags& flags);

}  // namespace piper::cli
