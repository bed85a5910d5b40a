#include <bench/alltoall_algorithms.h>
#include <bench/exchanges.h>
#include <bench/ranks.h>
#include <piper/base/units.h>
#include <piper/cli/byte_count.h>
#include <piper/comm/control.h>
#include <piper/comm/local.h>
#include <piper/comm/network.h>
#include <piper/comm/process_world.h>

#include <algorithm>

namespace piper::cli {

std::string BenchRanks::transport() const {
  if (!launch) return "local";
  const bool mpi =
      launch->launcher == comm::Launcher::kOpenMpi || launch->launcher == comm::Launcher::kMpich;
  return mpi ? "mpi" : "tcp";
}

std::unique_ptr<comm::World> BenchRanks::world() const {
  if (!launch) return std::make_unique<comm::LocalWorld>(num_ranks);
  return comm::make_process_world(*launch, num_ranks, {comm::control_options_from()});
}

BenchRanks read_bench_ranks(const BenchRanksFlags& flags, std::vector<std::string>* problems) {
  BenchRanks read;
  read.num_ranks = read_bytes("--ranks", flags.ranks, 1, 64, problems);
  read.launch = comm::launch_from();
  if (read.launch) read.num_ranks = read.launch->num_processes;
  read.min_rounds = read_bytes("--rounds", flags.rounds, 1, 1000, problems);
  read.max_rounds = std::max(read.max_rounds, read.min_rounds);
  read.min_repeats = read_bytes("--repeats", flags.repeats, 1, comm::kMaxRepeats, problems);
  read.budget_seconds =
      static_cast<double>(read_bytes("--seconds", flags.seconds, 1, 3600, problems));
  return read;
}

bool share_a_clock(comm::World& world) {
  const std::vector<std::string> hosts = world.share("hosts", comm::host_name());
  return std::ranges::all_of(hosts, [&](const auto& host) { return host == hosts[0]; });
}

}  // namespace piper::cli
