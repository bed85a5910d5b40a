// Does the machine run as fast as when it was profiled? Others on the same host, heat and clocks change it by a tenth within minutes;
// beside a prediction that is as large as its error.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/runtime/cores.h>
#include <piper/strategy/strategy.h>

#include <mutex>
#include <optional>
#include <vector>

namespace piper::train {

class SpeedCheck {
 public:
  // Of a cluster that `piper profile` measured in this precision; of any other it never says anything.
  SpeedCheck(const cluster::Cluster& cluster, strategy::Precision precision);

  bool possible() const { return profiled_seconds_ > 0; }

  // Runs the reference layers (runtime/reference_layers.h) for about half a second. Thread-safe: every rank of the process calls it,
  // all at once. A call before a run and one after it make two windows.
  enum class Window { kBefore, kAfter };
  void measure(Window window, runtime::Cores& cores);

  // What compute takes now over what it took in the profile: the mean of the windows' medians. None when nothing was measured.
  std::optional<double> slowdown() const;

 private:
  strategy::Precision precision_;
  double profiled_seconds_ = 0;
  std::mutex mutex_;
  std::vector<double> seconds_[2];
};

}  // namespace piper::train
