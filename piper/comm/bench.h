// How fast the transport is, with all ranks busy at once, as they are in training: one time over
// all sizes for a message, an exchange and a sum. Fitted by `piper profile`, printed by
// `piper bench`.
#pragma once

#include <piper/cluster/timing.h>
#include <piper/comm/world.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace piper::comm {

// One size. `seconds` is the median over batches of the time from the first rank's start to the
// last rank's end.
struct Sample {
  int64_t bytes = 0;
  double seconds = 0;
  cluster::Timing timing = {};  // of the batches: interval, outliers, worst
};

// The operands of one rank where they are not in the host's memory; its thread makes and uses it.
class BenchOperands {
 public:
  virtual ~BenchOperands() = default;
  virtual Transport& transport() = 0;  // of buffers there
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // Until all that was started there is over: what a batch of operations ends with.
  virtual void wait() = 0;
};

struct BenchOptions {
  double budget_seconds =
      2;  // of one call, shared evenly by the sizes; at least three batches are run a size
  double batch_seconds = 2e-3;  // operations are repeated until a batch lasts about as long
  int64_t max_batches = 25;
  // a size ends early once its median is known as well as this (cluster/timing.h); 0 = never
  double tight = 0;
  // Before each operation every rank writes as many bytes of its own, as training computes between
  // exchanges: operations then are timed one by one, from when the last rank starts until they end
  // in the mean of the ranks, and ranks that came earlier have to notice. 0: operations follow one
  // another.
  int64_t bytes_between = 0;
  // Makes a rank's operands, given its endpoint of the world; empty: in the host's memory. With it
  // operations follow one another, whatever bytes_between.
  std::function<std::unique_ptr<BenchOperands>(Transport&)> operands = {};
  double timeout_seconds = 60;  // of one wait
  std::function<void(double)>
      progress;  // called with the part done, 0 .. 1, in rank 0's thread; may be empty
};

// All of them start the local ranks of `world` as threads and return one sample a size, in the
// given order, in rank 0's process, and nothing elsewhere; all processes call them. The clocks of
// all processes are one: one host. Sizes >= 0. Throw CommError when a rank fails.

// Every rank sends `bytes` to the next rank and receives as many from the one before, all at once.
std::vector<Sample> measure_point_to_point(World& world, const std::vector<int64_t>& sizes,
                                           const BenchOptions& options = {});

// Every rank holds `bytes` for all ranks together, bytes / n for each, itself included;
// Sample.bytes is rounded down to a multiple of n.
std::vector<Sample> measure_all_to_all(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options = {});

// All ranks sum `bytes` of fp32 each; Sample.bytes is rounded down to a multiple of 4.
std::vector<Sample> measure_all_reduce(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options = {});

// The two halves of it by themselves, as everyone sends straight to every owner
// (collective/reductions.h): every rank ends with its share of the sum of `bytes` of fp32, and with
// all ranks' shares of `bytes`. Rounded down to a multiple of 4.
std::vector<Sample> measure_reduce_scatter(World& world, const std::vector<int64_t>& sizes,
                                           const BenchOptions& options = {});
std::vector<Sample> measure_all_gather(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options = {});

}  // namespace piper::comm
