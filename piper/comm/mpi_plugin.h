// The wire over MPI, which lives in a library of its own for each MPI that was there at build time
// (piper_mpi_openmpi.so, piper_mpi_mpich.so), beside the program: the program itself needs no MPI.
#pragma once

#include <piper/comm/control.h>
#include <piper/comm/launch.h>
#include <piper/comm/wire.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace piper::comm {

// A wire that can bring the processes together, too.
class MpiWire : public Wire {
 public:
  virtual int64_t process() const = 0;
  virtual int64_t num_processes() const = 0;
  virtual bool one_host() const = 0;  // whether all processes share one
  // Process 0's text, in all processes.
  virtual std::string broadcast(const std::string& text) = 0;
  // The MPI's own MPI_Alltoallv, by process, back to back: an opponent to be timed, not what
  // carries a run. Every process calls it, and no message is on its way. Throws CommError.
  virtual void all_to_all(std::span<const std::byte> sent, std::span<const int> sent_bytes,
                          std::span<std::byte> received, std::span<const int> received_bytes) = 0;
};

// What a plug-in exports under the name kMakeMpiWire: initialises MPI. The result is deleted by the
// caller. Throws CommError.
using MakeMpiWire = MpiWire* (*)();
constexpr const char* kMakeMpiWire = "piper_make_mpi_wire";

// Opens the plug-in of launch.launcher and starts MPI; fills in where the control channel is, and
// the run's secret. Throws InvalidInput when the plug-in is not there, or when processes on several
// hosts are not told which interface to use.
std::unique_ptr<MpiWire> open_mpi_wire(Launch& launch, const ControlOptions& options);

}  // namespace piper::comm
