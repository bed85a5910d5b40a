// Compute micro-benchmarks (Piper section IV-A): rates of the operations that segments are made of, measured while all
// ranks of the host are busy at once and share its cores exactly as they do in training (runtime/cores.h).
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <functional>
#include <string>

namespace piper::runtime {

struct MeasureOptions {
  int64_t num_ranks = 4;
  int64_t num_cores = 2;             // cores that the ranks share
  double seconds_per_point = 0.012;  // how long one point is repeated, per rank
  // Called after every point from one thread; done and total count points.
  std::function<void(const std::string& what, int64_t done, int64_t total)> progress;
};

struct ComputeRates {
  cluster::Compute compute;       // GEMM and attention grids; peak = the best GEMM rate seen
  cluster::Grid element_wise;     // bytes read and written per second, by bytes of the working set
  cluster::Grid copy;             // payload bytes per second, by payload
  double fixed_task_seconds = 0;  // of one operation on a handful of elements
  double exponential_elements_per_second =
      0;  // elements of a SiLU per second (compute-bound element-wise work)
  double optimizer_bytes_per_second = 0;  // AdamW in fp32, 28 bytes a parameter, out of memory
};

// Every rate is the median over the ranks of each rank's fastest-half mean. Weights are rotated through memory larger
// than the private caches, as a layer's weights are in training.
ComputeRates measure_compute(strategy::Precision precision, const MeasureOptions& options);

}  // namespace piper::runtime
