// A whole step of any strategy as a graph with prices: what sim::play plays, all axes at once.
// (schedule/writer.h writes what this Piper's runtime executes, with exact slots; this writes what
// the stack's closed form adds up, so that waiting, contention, and memory over time come out of a
// play instead of a formula.)
//
//   compute    the layers of every chunk, action by action (pieces.h)
//   exchange   collectives of tp, etp, cp and ep, and gathers and reductions over dp x cp and edp that are waited for at once
//   states     the gathers and reductions that hide; one after the other
//   host       copies to the host and back
//   messages   between virtual stages; the part that the stack does not hide keeps the sender from computing
//   end        what is left of the reductions, a sum over the world (no time of its own), the update, the weights back
//
// Each collective takes alone what stack::Rates says of a group that begins at device 0; while its
// bytes move it needs its members' ports (cost/links.h), which all axes share. A device's link to
// its host is a port too: copies both ways share it.
//
// Memory: states and fixed bytes always; what a micro-batch keeps from its forward to the end of
// its backward (or of the weights' part); what the stack calls working during backwards. Offloaded
// activations leave and come back as host_copies.h says.
#pragma once

#include <piper/cost/prices.h>
#include <piper/schedule/step.h>
#include <piper/stack/estimator.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <vector>

namespace piper::stack {

struct WholeStep {
  schedule::StepGraph step;
  cost::Prices prices;
};

// `ranks`: only these (all when empty), as schedule::write_step. Requires contradictions(strategy,
// model) to be empty, the estimator's sequence and precision, and world <= devices of the cluster.
// Ranks are as strategy::RankLayout numbers them.
WholeStep write_whole_step(Estimator& estimator, const strategy::Strategy& strategy,
                           const std::vector<Rank>& ranks = {}, double imbalance = 1);

// About how many tasks that is, without writing them.
double whole_step_tasks(const strategy::Strategy& strategy, const model::Model& model,
                        int64_t num_ranks);

}  // namespace piper::stack
