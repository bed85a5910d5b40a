// Simulates a step in virtual time: when would every task run, and how much memory would be live?
//
// Rules (the ones the executor keeps):
//   streams    start in order; a task starts when its dependencies have finished
//   compute    holds one core of its node (ready tasks take cores first come, first served; ties by
//              rank), or its device; a rank asks for a core when its compute task before has
//              finished and the dependencies have; who had to wait for a core starts
//              prices.core_hand_over_seconds after it was given back
//   send, receive        run from the moment both are posted
//   exchange, reduction  run on each member from the moment all members have posted
//              what ranks of one node tell each other is copied by its cores: by those without work
//              first, and those who compute lose the time of the rest
//   links      while the bytes of an operation move (after its latency: prices.links), it shares
//              the ports of devices, nodes and switch groups with every other operation of any axis
//              that moves through them: network.h. Alone it takes its price; members then end
//              together
//              (a faster link may therefore, rarely and by little, make a step slower: what is ready
//              sooner may meet what it used to miss)
//   memory     a slot lives from the start of the task that writes it (communication: from its
//              posting) to the end of the task that frees it; transient bytes while a task
//              runs; the static bytes always. What ends at an instant ends before what starts then.
#pragma once

#include <piper/cost/prices.h>
#include <piper/graph/timeline.h>
#include <piper/schedule/step.h>

namespace piper::sim {

// Deterministic; a million tasks a second and more. Throws InternalError when the graph deadlocks
// (validate and find_deadlock come first) or the prices are not this step's. Ranks that have no
// tasks in the graph take no part. When operations lack members (a subset of ranks was written),
// the members present are enough. An interval starts when the task starts or is posted.
// Without `keep_memory` the peaks are found but not the samples of memory over time.
graph::Timeline simulate(const schedule::StepGraph& step, const cost::Prices& prices,
                         bool keep_memory = true);

}  // namespace piper::sim
