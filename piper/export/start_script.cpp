#include <fmt/format.h>
#include <piper/base/printable.h>
#include <piper/export/start_script.h>

#include <algorithm>

namespace piper::exporting {
namespace {

constexpr int64_t kUsualDevices = 8;  // of a host

}  // namespace

Hosts hosts_of(const strategy::Strategy& strategy, const cluster::Cluster* machine) {
  const int64_t world = strategy.mesh.world();
  int64_t ranks = std::min(world, machine != nullptr ? machine->devices_per_node() : kUsualDevices);
  while (world % ranks != 0) --ranks;
  return {.num_hosts = world / ranks, .ranks_per_host = ranks};
}

std::string text_of(const StartScript& script, const strategy::Strategy& strategy,
                    const cluster::Cluster* machine) {
  const Hosts hosts = hosts_of(strategy, machine);
  // A name may hold anything: behind '#' it must stay in its line.
  const std::string on = shown_line(machine != nullptr ? machine->name : strategy.cluster);
  const bool several = hosts.num_hosts > 1;
  std::string text = fmt::format(
      "#!/usr/bin/env bash\n"
      "# {} on {} devices ({} x {}{}), for {}.\n"
      "# Written by piper export.{}\n",
      shown_line(strategy.model), strategy.mesh.world(), hosts.num_hosts, hosts.ranks_per_host,
      on.empty() ? "" : ", " + on, script.software,
      several ? " Run it on every host, or under Slurm once, in an allocation:" : "");
  if (several)
    text += fmt::format(
        "#   export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
        "#   srun --nodes={} --ntasks-per-node=1 bash -c 'NODE_RANK=$SLURM_NODEID bash "
        "THIS_FILE'\n",
        hosts.num_hosts);
  for (const std::string& remark : script.remarks) text += "# " + shown_line(remark) + "\n";
  text += "set -euo pipefail\n\n# To fill in, here or in the environment.\n";
  for (const FillIn& s : script.settings)
    text += s.value.empty() ? fmt::format(": \"${{{}:?{}}}\"\n", s.name, s.meaning)
                            : fmt::format(": \"${{{}:={}}}\"  # {}\n", s.name, s.value, s.meaning);
  if (several)
    text +=
        ": \"${NODE_RANK:?index of this host, from 0, in the order of the plan}\"\n"
        ": \"${MASTER_ADDR:?name of host 0}\"\n";
  if (!script.environment.empty()) text += "\n";
  for (const auto& [name, value] : script.environment)
    text += fmt::format("export {}={}\n", name, value);
  text += fmt::format("\nexec torchrun --nnodes={} --nproc-per-node={} \\\n  {} \\\n  {}",
                      hosts.num_hosts, hosts.ranks_per_host,
                      several ? "--node-rank=\"$NODE_RANK\" --master-addr=\"$MASTER_ADDR\" "
                                "--master-port=\"${MASTER_PORT:-29500}\""
                              : "--standalone",
                      script.program);
  for (const std::string& flag : script.flags) text += " \\\n  " + flag;
  return text + "\n";
}

}  // namespace piper::exporting
