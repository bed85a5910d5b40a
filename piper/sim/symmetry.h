// May one pipeline stand for all?
//
// With a balanced load, devices that compute alone and no stragglers, all ranks of a stage have the
// same compute tasks with the same prices. They start and end them together at every moment if
// besides
//
//   exchanges, reductions   every rank of the stage moves the same bytes over the same levels in
//                           its expert group, its expert data group, its data group and the world
//   messages                cross the same level whatever the data index
//   ports                   serve devices of one stage, or whole stages: then each port is asked
//                           for the same at every moment (links.h)
//
// (by induction over the events: what is equal up to now is equal at the next). Where all that
// holds, the pipeline of data index 0 is simulated alone and the rest is its copy; where one fails,
// or cannot be shown, all ranks are simulated.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/strategy/strategy.h>

#include <string>

namespace piper::sim {

// "" when the pipeline of data index 0 provably stands for all (a balanced load and undisturbed
// compute are for the caller to know), else why not, in words. O(ranks x levels).
std::string why_not_symmetric(const strategy::Strategy& strategy, const cluster::Cluster& cluster);
// The same of a whole step (cost/trainer/priced_step.h), whose prices are alike for all ranks of a
// stage: what is left to show is that every port serves devices of one stage, or of whole stages,
// or as many of every stage.
std::string why_not_symmetric_whole(const strategy::Strategy& strategy,
                                    const cluster::Cluster& cluster);

}  // namespace piper::sim
