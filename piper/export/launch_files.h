// A placement of ranks in the words of launchers, behind a comment that says who wrote it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace piper::exporting {

// Where a rank runs: a host, and which of its places there.
struct RankHost {
  std::string host;
  int64_t slot = 0;
};

// Open MPI (`mpirun --rankfile FILE`): a line "rank 3=node7 slot=1" a rank. A slot is a core of the
// host there: so many cores as `cores_per_slot` belong to each ("slot=4-7").
std::string open_mpi_rankfile(std::span<const RankHost> ranks, int64_t cores_per_slot = 1);

// Slurm (SLURM_HOSTFILE=FILE srun --distribution=arbitrary): the host of every task, a line each.
std::string slurm_hostfile(std::span<const RankHost> ranks);

}  // namespace piper::exporting
