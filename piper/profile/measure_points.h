// Measures curves point by point while all ranks of the host are busy at once and share its cores
// exactly as they do in training (executor/cores.h).
#pragma once

#include <piper/cluster/curve.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/profile_journal.h>
#include <piper/profile/time_shares.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::profile {

struct BenchPoint {
  std::vector<double> at;
  double amount = 0;  // of work: FLOPs, bytes or tokens of one call
  // Made once per rank, allocating its operands; then called repeatedly.
  std::function<std::function<void()>()> prepare;
};

struct BenchCurve {
  std::string name;  // "attention.fp32"; see cluster::Curve
  std::string unit;
  std::vector<std::string> axes;
  std::vector<BenchPoint> points;
  // A point whose fewest samples would by the last point's rate take several times its share is
  // left out.
  bool may_skip = false;
};

struct Measuring {
  int64_t num_ranks = 4;
  int64_t num_cores = 2;  // that the ranks share; 0 = every rank computes alone
  BenchDevice device;
  double tight = 0.02;  // a point ends when its median is known as well (cluster/timing.h)
  TimeShares* shares = nullptr;
  ProfileJournal* journal = nullptr;  // points found in it are not measured
  std::function<void(const std::string& curve)>
      after_point;  // from one thread at a time; may be empty
};

// The samples of a point are those of all ranks together. Points come in the curve's order, less
// those that were skipped. Rethrows what a point throws.
cluster::Curve measure(const BenchCurve& curve, const Measuring& how);

// Samples of one call on one rank, after one that warms up.
std::vector<double> time_calls(const std::function<void()>& call, const cluster::SamplingRule& rule,
                               const BenchDevice& device);

}  // namespace piper::profile
