// Says while a run goes on that it leaves what was predicted for it, and which component does:
// measured against assumed.
#pragma once

#include <piper/train/prediction.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace piper::train {

// The figure of one rank that explains most of a step's deviation: the component (prediction.h)
// whose seconds moved furthest in the step's own direction.
struct FurthestComponent {
  std::string name;
  double predicted_seconds = 0, measured_seconds = 0;
};
std::optional<FurthestComponent> furthest_component(const schedule::StepGraph& step,
                                                    const graph::Timeline& predicted,
                                                    const graph::Timeline& measured, Rank rank,
                                                    bool slower);

// Fed with every step by one thread. `bound` is relative; 0 = never says anything. The step, the
// prediction's timeline and the cluster outlive it.
class DeviationWatch {
 public:
  DeviationWatch(const schedule::StepGraph& step, const graph::Timeline& predicted,
                 double predicted_seconds, double bound)
      : step_(step), predicted_(predicted), predicted_seconds_(predicted_seconds), bound_(bound) {}

  // A line when the median of the last steps comes to lie beyond the bound, or on its other side,
  // or within it again. `measured`: the step's timeline, of which rank 0's tasks are read.
  std::optional<std::string> note(int64_t number, double seconds, const graph::Timeline& measured);

 private:
  static constexpr size_t kSteps = 5;         // of which the median is taken
  static constexpr int64_t kWarmUpSteps = 2;  // not looked at

  const schedule::StepGraph& step_;
  const graph::Timeline& predicted_;
  double predicted_seconds_;
  double bound_;
  int64_t num_seen_ = 0;
  std::deque<double> last_;
  int state_ = 0;  // -1 faster than predicted, 0 within the bound, 1 slower
};

}  // namespace piper::train
