// How far whole segments are from the sum of their priced operations on this machine: measured on
// one reference layer, kept as numbers of the cluster, and applied by cost/segment_time.h.
// Micro-benchmarks run each operation hot and alone; a segment's operations evict each other's
// operands, and its small operations are more than its GEMMs.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/reference_layers.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <functional>
#include <limits>

namespace piper::profile {

struct CalibrateOptions {
  int64_t num_ranks = 4;
  int64_t num_cores = 2;
  // Forward and backward run so often over the reference layers (with 5, factors of one machine
  // differed by up to 40 %, with 40 by up to 6 %). On an accelerator it is at most 8.
  int64_t num_repeats = 25;
  // On processors repeats end once this has passed, behind the sixth that is measured.
  double budget_seconds = std::numeric_limits<double>::infinity();
  // Repeats that are done, of all that may be; by one thread.
  std::function<void(int64_t done, int64_t all)> progress;
  BenchDevice device;                    // an accelerator has one rank
  const Reference* reference = nullptr;  // else reference_for(device)
};

// Runs a reference model (reference_layers.h) on all ranks at once and sets in cluster.numbers:
// "measured_over_priced.<segment>.<phase>.<precision>" for every segment and both phases,
// "task_scatter_ratio" (cost::scatter), on processors reference_pass_name(), "rank_scatter_ratio"
// where there are several ranks, and "core_hand_over_seconds" where ranks outnumber cores. Requires
// the cluster's curves of the precision to be filled in.
void calibrate_segments(cluster::Cluster& cluster, strategy::Precision precision,
                        const CalibrateOptions& options);

}  // namespace piper::profile
