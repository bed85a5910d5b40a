// Does the machine run as fast as when it was profiled? Others on the same host, heat and clocks
// change it by a tenth within seconds; beside a prediction that is as large as its error.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/cluster/cluster.h>
#include <piper/executor/cores.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::train {

class SpeedCheck {
 public:
  // Compares with a cluster that `piper profile` measured in this precision; with any other it
  // never says anything.
  SpeedCheck(const cluster::Cluster& cluster, strategy::Precision precision, int64_t num_ranks);

  bool possible() const { return profiled_seconds_ > 0; }

  // Runs the reference layers (profile/reference_layers.h) for a tenth of a second: one window.
  // Every rank of the process calls it, all at once; a rank writes what is its own.
  void measure(Rank rank, executor::Cores& cores);

  // What a rank measured, as bytes for another process, and their way in there.
  std::string part_of(Rank rank) const;
  void add_part(Rank rank, const std::string& part);

  // What compute takes over what it took in the profile, step by step: the mean of the windows
  // before and after it, of each the mean of the ranks. Empty when nothing was measured.
  std::vector<double> slowdowns() const;

 private:
  strategy::Precision precision_;
  double profiled_seconds_ = 0;
  std::vector<std::vector<double>> seconds_;  // by rank, by window
};

}  // namespace piper::train
