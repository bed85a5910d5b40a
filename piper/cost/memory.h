// Exact memory of one rank of a stage, by component: what the simulation of the same strategy
// finds, without simulating it.
//
//   state          weights, gradients, optimizer (rank_parameters.h). Where gradients are divided,
//                  a rank's own sums, and the buffers that are live at the fullest moment
//   activations    what a micro-batch keeps for its backward, times the micro-batches in flight
//                  (GPipe m, 1F1B min(m, p - stage)), less one: the newest is in `working`
//   working        the most that the newest micro-batch holds while its forward and backward run:
//   kept
//                  slots, slots of the moment, scratch of the segments
//   messages       slots that wait to be sent to, or have been received ahead from, the neighbours
//
// The update holds no activation; the reductions' scratch is smaller than one layer's gradients.
#pragma once

#include <piper/cost/layer_cost.h>
#include <piper/cost/layer_memory.h>

#include <cstdint>

namespace piper::cost {

struct StageMemory {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  KeptBytes activations;  // of the micro-batches in flight but the newest
  int64_t working = 0;
  int64_t messages = 0;
  int64_t in_flight = 1;  // micro-batches
  int64_t exchange_scratch =
      0;             // of one exchange that is not flat (all_to_all_config.h); part of `working`
  int64_t host = 0;  // the most that lives with the host (Strategy::offload), beside all this
  int64_t state() const { return weights + gradients + optimizer; }
  int64_t total() const { return state() + activations.total() + working + messages; }
};

// How one micro-batch moves through a stage: layers appended one by one, ends as needed.
class StageWalk {
 public:
  // A live input of `hidden` bytes (received, or written by the embedding).
  explicit StageWalk(int64_t hidden);
  void layer_forward(const LayerMemory& layer);
  // Keeps the last layer's output, which is live, and the head's tape.
  void head_forward(const HeadCost& head);
  // The input of a module's layer, live beside what the head before it keeps.
  void join_forward(const HeadCost& module);
  // Leaves the gradient in the place of the output; unless a join still reads that, beside it.
  void head_backward(const HeadCost& head, bool is_joined);
  // From the gradients of the module's input and of what the head `before` read, to the latter as a
  // whole.
  void join_backward(const HeadCost& module, const HeadCost& before);
  // No head: the output is sent, the gradient received.
  void transfer(int64_t hidden);
  void layer_backward(const LayerMemory& layer);  // in reverse order
  const Stretch& walked() const { return walked_; }
  const KeptBytes& kept() const { return kept_; }

 private:
  Stretch walked_;
  KeptBytes kept_;
};

}  // namespace piper::cost
