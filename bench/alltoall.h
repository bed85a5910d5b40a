// What `piper bench alltoall` measures: the exchange of every rank with every other by every
// algorithm side by side, in the columns of nccl-tests, beside the least time that the wires allow
// and what the simulation predicts.
//
// The ranks are threads of this process, or the processes that a launcher started (one rank each):
// over MPI under an mpirun, where MPI_Alltoallv is an opponent, too; over TCP otherwise. Or over
// NCCL, each with a GPU of its own.
#pragma once

#include <bench/exchanges.h>
#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>
#include <piper/comm/world.h>
#include <piper/cost/load_distribution.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct AllToAllOptions {
  std::vector<int64_t> bytes_per_pair;  // of a pair of ranks, ascending; with an uneven load as
                                        // alltoall_load.h says
  std::vector<std::string> algorithms;  // empty: all
  cost::LoadDistribution load;
  std::optional<cluster::Cluster> cluster;  // whose rates the limit and the prediction take
  double budget_seconds = 10;
  int64_t min_rounds = 1, max_rounds = 25, min_repeats = 1;
  // As in comm::ExchangeBenchOptions.
  std::function<std::unique_ptr<comm::DeviceExchanges>(const comm::Transport&)> device = {};
};

struct AllToAllPoint {
  std::string algorithm;
  int64_t bytes_per_pair = 0;
  int64_t bytes = 0;  // that a rank sends, its own part included: the mean over the ranks
  comm::ExchangeResult measured;
  // Least seconds: rates of the cluster, or, without one, a plain copy of as many bytes by all
  // ranks of the process at once. Absent without a cluster where there are several processes.
  std::optional<double> limit_seconds;
  std::optional<double> predicted_seconds;  // of the simulation; absent without a cluster
  int64_t num_wrong() const { return measured.num_wrong; }
};

struct AllToAllRun {
  std::string transport;  // "local", "mpi", "tcp", "nccl"
  int64_t num_ranks = 0, num_nodes = 0;
  std::string load;
  std::vector<AllToAllPoint> points;  // by size, then algorithm
  int64_t num_wrong() const;
};

// In every process of `world`; the same result in all. `progress` is called with the part done,
// 0 .. 1. Throws InvalidInput, CommError.
AllToAllRun bench_alltoall(comm::World& world, const std::string& transport,
                           const AllToAllOptions& options,
                           const std::function<void(double)>& progress);

std::string to_text(const AllToAllRun& run);
Json to_json(const AllToAllRun& run);
// A picture by itself: seconds over bytes a pair, a curve for every algorithm, the limit among
// them.
std::string to_svg(const AllToAllRun& run);

}  // namespace piper::cli
