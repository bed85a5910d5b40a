// The gradient reductions and the update that ends a step. Reductions over groups of one rank are
// left out.
#pragma once

#include <piper/schedule/writer.h>

#include <cstdint>

namespace piper::schedule {

// Writes one rank's reductions in the order in which its gradients become final. All ranks of a
// stage run the same actions, so their exchange streams hold the same operations in the same order,
// between all-to-alls of the expert group as well.
class Reductions {
 public:
  explicit Reductions(RankWriter& writer) : writer_(writer) {}

  // Right after the last backward that adds to these gradients. A layer (>= 0) has dense and, with
  // a mixture, expert gradients; -1 is the embedding, -2 the head and the final norm.
  void write_layer(int32_t layer);

  // After everything else of the step: the tied embedding, this rank's share of the gradient norm,
  // the statistics of the world, the optimizer.
  void write_update();

 private:
  void reduce(strategy::Axis axis, const Segment& segment,
              const graph::ShortList<graph::TaskId>& after);
  void write_tied_embedding();

  RankWriter& writer_;
  graph::ShortList<graph::TaskId> tasks_;  // all reductions so far
};

}  // namespace piper::schedule
