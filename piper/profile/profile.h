// Measures this machine with all its ranks busy at once and writes it down as a cluster: one node
// whose devices are the ranks (threads of one process) that share the host's cores; or one
// accelerator.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/profile/bench_device.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::profile {

struct ProfileOptions {
  int64_t num_ranks = 4;  // on accelerators: as many as there are
  int64_t num_cores = 0;  // 0 = all that this process may run on
  // What the curves aim to take; whole passes of a small model follow, at most three times as long.
  double budget_seconds = 15;
  double tight = 0.02;  // a point ends when the 95 % interval of its median is as narrow
  std::vector<strategy::Precision> precisions = {strategy::Precision::kFp32};
  BenchDevice device;  // that computes
  // Accelerators between which links are measured, `device` the first of them: one rank each.
  // Empty: it alone, or the host's processor.
  std::vector<at::Device> devices;
  // Besides what prices need: the curves of shape_curves.h, links among fewer ranks and up to 64
  // MB, and the join for `model`. Requires a model.
  bool full = false;
  // Measures first which library does which products (measure_products.h), and what follows with
  // that choice. Not for a profile that nobody keeps: two such runs could choose differently.
  bool choose_products = false;
  std::optional<model::Model> model;
  int64_t sequence = 256;  // of the model, in the join
  // The partial file (profile_journal.h): read when it is there. It stays, for the caller to remove
  // once the result is kept. Empty: none.
  std::filesystem::path partial;
  bool fresh = false;  // measures all anew: the partial file is replaced at the first point
  // Ranks in several processes have had their links measured (measure_links_of), as a training run
  // of those processes would use them. Empty: the links between threads are measured.
  std::vector<cluster::Curve> links;
  // The part that is done; called from one thread at a time.
  std::function<void(const std::string& what, double part_done)> progress;
};

struct Profile {
  cluster::Cluster cluster;  // with all curves
  double seconds = 0;        // what profiling took
  int64_t num_points = 0;    // planned; the curves hold those that were measured
  int64_t num_restored = 0;  // of them, from the partial file
  int64_t ep = 1;            // what the join's experts stand for
};

// Throws InvalidInput for a number of ranks below 1, more or fewer ranks than accelerators, a
// partial file of something else; CommError when a rank fails.
Profile profile_host(const ProfileOptions& options);

// Physical memory of the host in bytes, and the processor's name ("AMD EPYC"); "" when unknown.
int64_t host_memory_bytes();
std::string host_processor();

}  // namespace piper::profile
