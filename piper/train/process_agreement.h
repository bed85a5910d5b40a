// What the processes of a run do before and after its steps, so that one of them cannot go on where
// another has failed.
//
// Thread safety: the process's main thread, outside run_ranks(); every process makes the same calls
// in the same order.
#pragma once

#include <piper/comm/operations.h>
#include <piper/comm/world.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::train {

// Does `work` in every process and returns what each returned, by process. A failure anywhere is
// everyone's: InvalidInput where the input was wrong, else CommError, "process 2: ..."; this
// process's own is rethrown as it is.
std::vector<std::string> on_all_processes(comm::World& world, const std::string& what,
                                          const std::function<std::string()>& work);

// Does `work` in process 0 alone and returns its text everywhere; its failure is everyone's.
std::string on_first_process(comm::World& world, const std::string& what,
                             const std::function<std::string()>& work);

// Throws InvalidInput, naming the process and both values, unless `text` is the same everywhere.
void require_agreement(comm::World& world, const std::string& what, const std::string& text);

// The same of what `work` finds out in each process, where it may take a while or fail
// (on_all_processes()).
void require_agreement(comm::World& world, const std::string& what,
                       const std::function<std::string()>& work);

// Rank 0 gets what every rank gives, by rank; others get nothing. Called by every rank's thread.
// `key` and `key` + 1 name its operations. Any content; at most 2^40 bytes a rank.
std::vector<std::string> gather(comm::Transport& transport, uint64_t key, const std::string& mine,
                                double timeout_seconds);

// Every rank gets the number that rank 0 gives.
int64_t broadcast(comm::Transport& transport, uint64_t key, int64_t value, double timeout_seconds);

// Every rank gets what each rank gives, by rank.
std::vector<int64_t> all_gather_number(comm::Transport& transport, uint64_t key, int64_t value,
                                       double timeout_seconds);

// Meeting point of all ranks; throws CommError when one of them has failed.
void barrier(comm::Transport& transport, uint64_t key, double timeout_seconds);

}  // namespace piper::train
