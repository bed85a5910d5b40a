// The processes that work on one command together.
#pragma once

#include <piper/comm/world.h>

#include <cstdint>
#include <memory>

namespace piper::cli {

struct MeetingFlags {
  double heartbeat_seconds = 0;  // 0: as the environment says
  bool listen_everywhere = false;
};

// Those that mpirun, srun, torchrun or `piper launch` started, or this one alone, whose ranks are
// then threads. Throws InvalidInput, CommError.
std::unique_ptr<comm::World> meet_processes(int64_t num_ranks, const MeetingFlags& flags = {});

}  // namespace piper::cli
