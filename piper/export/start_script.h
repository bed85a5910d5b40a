// The script that starts a run: for which software it is, what has to be filled in, the launcher's
// line, the environment and the flags.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::exporting {

// A value that no plan knows: the script takes it from the environment and ends without it, with
// `meaning`.
struct FillIn {
  std::string name;     // of the variable: "CONFIG"
  std::string meaning;  // "the function of the config registry"
  std::string value;    // what it is where nothing else is said; empty: it has to be filled in
};

struct StartScript {
  std::string software;              // with its version: "torchtitan b5bcd76c (2026-08-21)"
  std::vector<std::string> remarks;  // comments at the top
  std::vector<FillIn> settings;
  std::map<std::string, std::string> environment;
  std::string program;             // behind the launcher's flags: "-m torchtitan.train"
  std::vector<std::string> flags;  // "--name value" or a switch, in their order
};

// Processes of a host: as many as it has devices, or all ranks where there are fewer; where these
// do not divide the ranks, the most that do. 8 devices where the machine is not known (null).
struct Hosts {
  int64_t num_hosts = 1, ranks_per_host = 1;
};
Hosts hosts_of(const strategy::Strategy& strategy, const cluster::Cluster* machine);

// For bash. torchrun starts the ranks of the host that runs it. The hosts are numbered in the order
// in which the plan places ranks on them; a comment says how Slurm runs the script on all of them.
std::string text_of(const StartScript& script, const strategy::Strategy& strategy,
                    const cluster::Cluster* machine);

}  // namespace piper::exporting
