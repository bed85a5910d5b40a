// A world of several processes, several ranks each: ranks process * n ... process * n + n - 1 live
// in a process. Messages within a process are copied as in local.h; between processes they go over
// a wire (wire.h), and the control channel (control.h) watches over all.
#pragma once

#include <piper/comm/control.h>
#include <piper/comm/launch.h>
#include <piper/comm/world.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace piper::comm {

struct ProcessOptions {
  ControlOptions control;
};

// Meets the other processes of `launch`: over MPI when its launcher is an mpirun, over TCP
// otherwise. Throws InvalidInput when `num_ranks` is no multiple of the number of processes, when
// a port cannot be had, or when the launcher's MPI is not available; CommError naming who does not
// come.
//
// Destroying the world waits until every process is done with it. When it has failed, or an
// exception is under way, the others are told instead. Under MPI a failed process ends with
// MPI_Abort at its exit, so that mpirun ends the run.
std::unique_ptr<World> make_process_world(const Launch& launch, int64_t num_ranks,
                                          const ProcessOptions& options = {});

// The all-to-all of the library that carries the messages, as an opponent: bytes by rank, back to
// back. A rank's thread calls it while nothing else is on its way. Throws CommError.
using NativeAllToAll =
    std::function<void(std::span<const std::byte> sent, std::span<const int> sent_bytes,
                       std::span<std::byte> received, std::span<const int> received_bytes)>;
// Empty where there is none: in worlds that are not over MPI, or with several ranks in a process.
// `world` outlives it.
NativeAllToAll native_all_to_all(World& world);

}  // namespace piper::comm
