// What the planner would choose now: the search again, on the machine and under the load that a run
// has seen in place of those that were assumed.
#pragma once

#include <piper/plan/observed_machine.h>
#include <piper/plan/search.h>

#include <functional>
#include <optional>

namespace piper::plan {

using Accepts = std::function<bool(const strategy::Strategy&)>;

struct Proposal {
  strategy::Strategy strategy;
  double seconds = 0;          // of a step, simulated on the machine as it was observed
  double seconds_staying = 0;  // the same of the strategy that the run has
};

// The strategy that would be fastest now; nullopt where that is the present one, or where steps are
// too much work to simulate (may_simulate). `request`: of all that may be chosen, with the cluster
// as it is described and the imbalance that was observed; its ranks are those of `present`.
//
// Every device computes as much slower as the fastest rank was (cluster::slowed), and the others
// are stragglers (sim::Disturbance). Beside what the search finds stands each of its pipelines with
// the layers divided by how fast the stages are. `accepts`: what else a strategy has to be; empty:
// all.
std::optional<Proposal> propose(const Request& request, const strategy::Strategy& present,
                                const ObservedMachine& machine, const Accepts& accepts = {});

}  // namespace piper::plan
