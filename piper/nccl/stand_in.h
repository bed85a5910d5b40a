// A stand-in for NCCL and the CUDA runtime on a machine without GPUs: a library that implements the
// functions of library.h on host memory, ranks being threads of one process. For tests.
//
// Faithful where it matters to whoever orders work. A stream is a queue with a thread of its own;
// an event is reached when its stream comes to it. A group is one piece of work in its stream: it
// ends when every send and receive in it has met its counterpart, and what is behind it waits.
// Sends have no buffer to go to: they wait for the receive. So a programme in a wrong order hangs.
// Stricter than NCCL where that leaves behaviour undefined: see the faults below. Device memory is
// memory; every pair of a group and its counterpart is copied by whoever comes second.
#pragma once

#include <cstdint>

extern "C" {

struct StandInOptions {
  // Streams dawdle before a piece of work, up to so long, at random.
  int64_t jitter_us;
  // So many polls after ncclGroupEnd before a group is put into its stream, and after
  // ncclCommInitRankConfig when all are there.
  int64_t polls_in_progress;
  // A group's messages one distance (receiver - sender) after another, as if nothing overtook: what
  // only matching groups survive.
  bool one_by_one;
  // Devices that there are.
  int num_devices;
};

// Before any stream is made; the options stay until the next call. Forgets the faults.
void piper_stand_in_reset(const StandInOptions* options);

// What was done against the rules, the first one in words: groups that match two groups of a
// peer, sizes that differ, a call on a communicator or a stream whose group is not put in yet,
// use of an aborted communicator, a group left open.
int64_t piper_stand_in_num_faults();
const char* piper_stand_in_first_fault();
}
