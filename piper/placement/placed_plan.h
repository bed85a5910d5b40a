// The plan for the nodes that a job has: the best of a search by the step that is to be expected
// where their ranks are placed (placed_steps.h).
#pragma once

#include <piper/placement/placed_steps.h>

#include <cstddef>
#include <vector>

namespace piper::placement {

// So many of the best are placed.
inline constexpr size_t kMostPlaced = 8;

// A strategy as a search ranks it, whose ranks sit where the search assumes them.
struct Placeable {
  strategy::Strategy strategy;
  double seconds = 0;  // predicted, of a step
  ExposedSeconds exposed;
};

// One strategy on the nodes.
struct OnNodes {
  strategy::Strategy strategy;
  double predicted_seconds = 0;  // as searched
  PlacedStep step;
  size_t searched = 0;  // its index in the search's ranking
};

struct PlacedPlan {
  cluster::Allocation allocation;
  std::vector<OnNodes> ranked;  // fastest as placed first; of equal ones as searched
};

// Places the first kMostPlaced of `searched`. Each requires what place_step() does.
PlacedPlan rank_on_nodes(cluster::Allocation allocation, const model::Model& model,
                         const std::vector<Placeable>& searched);

}  // namespace piper::placement
