// Which nodes to ask for, by the step that is to be expected on them (placed_steps.h), not by busy
// links alone: gradients that a backward hides keep links as busy as tokens that every rank waits
// for.
//
// Candidates: what choose_nodes.h finds by bytes; what it finds by bytes times the seconds that a
// step waits for a second in which the links of their axis are busy; the first in the order given.
// Each is placed (in less than the full search); the shortest step wins, of equal ones the first
// named.
#pragma once

#include <piper/placement/choose_nodes.h>
#include <piper/placement/placed_steps.h>

#include <cstdint>

namespace piper::placement {

struct StepChoice {
  NodeChoice choice;            // its seconds are of busy links, as choose_nodes() has them
  double step_seconds = 0;      // expected on these nodes
  double by_bytes_seconds = 0;  // on those with the least busy links
  double first_seconds = 0;     // on the first in order; infinite where they have too few slots
};

// Requires as place_step() and throws as choose_nodes().
StepChoice choose_nodes_by_step(const cluster::Allocation& allocation, int64_t count,
                                const model::Model& model, const strategy::Strategy& strategy,
                                const ExposedSeconds& exposed, double predicted_seconds);

}  // namespace piper::placement
