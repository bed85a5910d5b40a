// An MPI whose library calls abort(), a part of mpi_wire.cpp. UCX, below MPICH and some Open MPIs,
// does so when a process dies whose memory it reads just then. The process's other threads hear of
// that death by the control connection; they shall say who died before this process ends too.
#pragma once

#include <functional>

namespace piper::comm {

// While one lives, abort() in the thread that made it calls go_on(), which does not return; in
// every other thread it ends the process, as ever. At most one for a thread. Sets the process's
// action for SIGABRT and does not set it back: there is one wire in a process.
class MpiAbort {
 public:
  explicit MpiAbort(std::function<void()> go_on);
  ~MpiAbort();
  MpiAbort(const MpiAbort&) = delete;
  MpiAbort& operator=(const MpiAbort&) = delete;

  // Whether abort() is caught while it lives; it is not otherwise. Around calls of MPI, not around
  // Piper's own code that they call back.
  class Catching {
   public:
    explicit Catching(bool on);
    ~Catching();
    Catching(const Catching&) = delete;
    Catching& operator=(const Catching&) = delete;

   private:
    bool before_ = false;
  };
};

}  // namespace piper::comm
