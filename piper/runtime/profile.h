// Measures this machine with all its ranks busy at once and writes it down as a cluster: one node whose devices are the
// ranks (threads of one process) that share the host's cores.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cluster/fit.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::runtime {

struct ProfileOptions {
  int64_t num_ranks = 4;
  int64_t num_cores = 0;       // 0 = all that this process may run on
  double budget_seconds = 15;  // what the measurements aim to take
  std::vector<strategy::Precision> precisions = {strategy::Precision::kFp32};
  // done of total points; called from one thread at a time.
  std::function<void(const std::string& what, double part_done)> progress;
};

// What a fit says about one kind of communication.
struct LinkProfile {
  std::vector<cluster::Sample> samples;
  cluster::Fit fit;
};

struct Profile {
  cluster::Cluster cluster;
  LinkProfile point_to_point;  // bytes of one message, every rank sending and receiving at once
  LinkProfile all_reduce;      // likewise: what a rank sends in one of the two halves
  LinkProfile all_to_all;      // bytes of one rank to all others together
  double seconds = 0;          // what profiling took
};

// Throws CommError when a rank fails; InvalidInput for a number of ranks below 1.
Profile profile_host(const ProfileOptions& options);

// Physical memory of the host in bytes, and the processor's name ("AMD EPYC"); "" when unknown.
int64_t host_memory_bytes();
std::string host_processor();

}  // namespace piper::runtime
