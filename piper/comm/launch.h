// Where this process stands among those of its run, as the launcher tells it through the
// environment.
//
// | launcher     | variables |
// |---|---|
// | Piper's own  | PIPER_PROCESS, PIPER_NUM_PROCESSES, PIPER_LOCAL_PROCESS, PIPER_MASTER_ADDRESS,
// |              | PIPER_MASTER_PORT, PIPER_SECRET; PIPER_LISTEN_FD in process 0 |
// | torchrun     | RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT |
// | Open MPI     | OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE |
// | MPICH, PMI   | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS |
// | Slurm (srun) | SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID; told from a batch script,
// |              | which sees them too, by SLURM_STEP_ID |
//
// The first of this list that is present decides: the launcher that was started last sets its
// variables inside the others'. Slurm alone (no MPI) needs PIPER_MASTER_ADDRESS unless the step has
// one node. PIPER_MASTER_ADDRESS, PIPER_MASTER_PORT and PIPER_SECRET complete every launcher's.
//
// The secret keeps strangers out. `piper launch` makes a random one and so does MPI's process 0,
// which tells it over MPI. torchrun and srun have no channel that strangers cannot read, so without
// PIPER_SECRET the processes of one host share a random one in a file (local_secret.h), and those
// of several derive it from torchrun's run id, or Slurm's job and step: whoever guesses those can
// join.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace piper::comm {

enum class Launcher { kPiper, kTorchrun, kOpenMpi, kMpich, kSlurm };

const char* to_string(Launcher launcher);  // "torchrun", "Open MPI", ...

struct Launch {
  Launcher launcher = Launcher::kPiper;
  int64_t process = 0;
  int64_t num_processes = 1;
  int64_t local_process = 0;        // among those of this host
  int64_t num_local_processes = 0;  // 0: not told
  std::string master_address;  // of process 0's control channel; empty under MPI, which tells it
  int master_port = 0;
  std::string secret;
  bool secret_can_be_guessed = false;  // it is made of what the launcher calls the run
  bool one_host = false;               // the launcher says that all processes are on one
  int listen_fd = -1;  // process 0: a listening socket to use instead of opening one, or -1
};

// The value of an environment variable, or nothing.
using LookUp = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> from_environment(const std::string& name);

constexpr size_t kMinSecretBytes = 16;  // of PIPER_SECRET

// nullopt for a single process. Throws InvalidInput naming each variable that is malformed, missing
// or contradicts another.
std::optional<Launch> launch_from(const LookUp& look_up = from_environment);

}  // namespace piper::comm
