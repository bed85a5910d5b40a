// A world of several processes, several ranks each: ranks process * n ... process * n + n - 1 live
// in a process. Messages within a process are copied as in local.h; between processes they go over
// a wire (wire.h), and the control channel (control.h) watches over all.
#pragma once

#include <piper/comm/control.h>
#include <piper/comm/launch.h>
#include <piper/comm/world.h>

#include <memory>

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

}  // namespace piper::comm
