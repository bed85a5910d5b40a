// How weights and gradients that travel beside everything else (state_traffic.h) slow a
// rank, in closed form: one rank's pieces in order, the traffic of states as one queue beside them.
// The same fluid as the simulation's (sim/network.h): a collective and the queue that together need
// more of a level than there is get the same part of what each needs.
#pragma once

#include <piper/cost/gradient_reduction_overlap.h>
#include <piper/cost/trainer/layer_price.h>

namespace piper::cost {

// Parts of their speed alone at which a collective and the queue move together.
struct SharedRates {
  double collective = 1, queue = 1;
};
SharedRates shared_rates(const LevelUtilization& collective, const LevelUtilization& queue);

// What a shape's collectives other than its exchanges need of the links (CollectiveCost::needs).
struct ShapeNeeds {
  LevelUtilization tensor, context, expert_tensor;
};

// A rank's time while its queue is worked off.
class OverlapTimeline {
 public:
  OverlapTimeline(const ShapeNeeds& needs, const LevelUtilization& queue);

  void post(double seconds) { queue_ += seconds; }
  void compute(double seconds);
  // A layer's pass; `compute`: seconds of its two blocks.
  void forward(const LayerPrice& p, double attention, double feed_forward);
  void backward(const LayerPrice& p, double attention, double feed_forward);
  // Until no more than so many seconds are left in the queue.
  void wait(double left = 0);

  double now() const { return now_; }
  double queue() const { return queue_; }

 private:
  // A part of what is exposed of it.
  void collective(const CollectiveCost& travel, const SharedRates& speed, double part = 1);
  // All of it that counts; how fast it and the queue then are.
  void move(const CommTime& moves, double part, const SharedRates& speed);
  SharedRates speed_of(const CollectiveCost& exchange) const;
  // The half of a layer that may be a mixture, with `seconds` of computing.
  void mixture(const MixtureCollectives& m, const CollectiveCost& there, const CollectiveCost& back,
               double seconds);
  LevelUtilization needs_;  // of the queue
  SharedRates tensor_, context_, expert_tensor_;
  double now_ = 0, queue_ = 0;
};

}  // namespace piper::cost
