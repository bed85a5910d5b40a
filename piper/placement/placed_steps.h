// Plans for the nodes that a job really has: strategies ranked by the step that is to be expected
// where their ranks would sit.
//
// The search takes rank i to sit on device i of a regular machine. An allocation is none: its nodes
// lie on switches and racks as the scheduler found them. So the best strategies are placed
// (place_ranks.h), each in its own way, and
//
//   step = predicted step + sum over axes  exposed seconds x (busy as placed / busy as assumed - 1)
//
// where an axis is busy as long as its busiest port, of all its groups together (as in
// sim::fabric_of); n_u of a group's n members are in the unit, B is a device's share of a level:
//
//   inside of nodes, a device   pairs (n - 1) x bytes, ring bytes                 / B_0
//   across nodes, a device      pairs (n - n_u) x bytes, ring bytes / n_u         / B_1
//   further out, a unit         pairs n_u (n - n_u) x bytes, ring bytes           / (B_l x devices)
//
// The exchange of tokens counts as long as its messages take, simulated (placed_exchange.h), where
// they are few enough. What compute hid stays hidden in this; groups of one axis do not slow those
// of another. The order with the shortest step is taken out of four: ranks as given; placed by
// their bytes (placement_price.h); placed by their bytes times the seconds that a step waits for a
// second in which the links of their axis are busy, so that gradients under a backward hardly
// count; and the same without swaps, in whole blocks.
#pragma once

#include <piper/cost/executor_estimator.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/placement/place_ranks.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace piper::placement {

// Seconds of a step in which communication is exposed (not overlapped with compute), by kind.
struct ExposedSeconds {
  double exchange = 0, tensor = 0, context = 0, messages = 0, reductions = 0;
};
ExposedSeconds exposed_of(const cost::StepSeconds& time);

// By axis; 0 where nobody says anything.
using BusySeconds = std::array<double, kNumAxes>;
BusySeconds busy_seconds(const cluster::Cluster& machine, const Slots& slots,
                         std::span<const RankGroup> groups, const RankSlots& placement);

// Every axis' bytes by what a step of ranks where the search assumes them waits for them: what
// place_ranks() is given besides.
std::vector<RankGroup> by_waiting_of(const cluster::Cluster& machine,
                                     std::span<const RankGroup> groups,
                                     const ExposedSeconds& exposed, int32_t num_ranks);

struct PlacedStep {
  Placing placing;
  double seconds = 0;           // as placed
  double given_seconds = 0;     // rank i on slot i
  double by_bytes_seconds = 0;  // placed by bytes alone
};

// Requires as many slots as the strategy has ranks, and contradictions(strategy, model) to be
// empty.
PlacedStep place_step(const cluster::Allocation& allocation, const Slots& slots,
                      const model::Model& model, const strategy::Strategy& strategy,
                      const ExposedSeconds& exposed, double predicted_seconds,
                      const PlaceOptions& options = {});

}  // namespace piper::placement
