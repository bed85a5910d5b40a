// What steps that were executed say of the machine, beside what was assumed of it.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/prices.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>

#include <span>
#include <vector>

namespace piper::plan {

// Measured seconds over predicted ones: 1 = as described.
struct ObservedMachine {
  std::vector<double> compute;  // by rank: of all that it computes
  // By level of the cluster: of the operations whose members have it as their innermost common
  // level, from the moment when the last member has come to its end. The median of those beside
  // which their ranks were in no other, over their prices; where these are the smaller part, how
  // long ranks were in at least one, over the same in the simulation. Operations cross the levels
  // inside their own, too, and do not say which one was slow: a level without operations of its own
  // takes the figure of the next wider one that has some, so that nothing is proposed in the hope
  // that it is fast. 1 where nobody spoke.
  std::vector<double> links;
};

// From one step of all ranks. `prices`: of the same step (cost::price), under the load that it had;
// `simulated`: with these prices (sim::simulate); `measured`: clocks of all ranks agree. Rank i
// sits on device i. A task that has not run is left out.
ObservedMachine observe(const schedule::StepGraph& step, const cost::Prices& prices,
                        const cluster::Cluster& cluster, const graph::Timeline& simulated,
                        const graph::Timeline& measured);

// Figure by figure the median of several steps, of which there is at least one.
ObservedMachine median_of(std::span<const ObservedMachine> steps);

}  // namespace piper::plan
