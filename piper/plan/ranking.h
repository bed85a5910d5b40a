// From what a search has kept to the best: simulated, judged under the request's load, and of those
// that are about as fast the one that an engineer would take, since the price errs by more than they
// differ.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>

namespace piper::plan {

// Moves to the front of the ranking, of those within kTieSlack of the fastest, the one that needs
// least memory in steps of kTieBytes (at p95 of the load where it was drawn); of equals the one
// with the smaller ep, then the one whose exchange spans fewer nodes, then the fastest. The others
// keep their order. Requires that the ranking is simulated as far as it will be.
void prefer_among_ties(const Request& request, Plan& plan);

// Simulates and judges the first `count` of what search() found, by samples of the load where there
// is one (under_load.h), and calls prefer_among_ties(). Where none of them fits at p95 of the
// samples, it searches once more at that. Fills in Candidate::heavy of these.
void rank(const Request& request, Plan& plan, int64_t count = kMostSimulated);

// Nodes over which one exchange of experts' rows spreads; 1 where none travel.
int64_t nodes_of_exchange(const strategy::Strategy& strategy, const cluster::Cluster& cluster);

}  // namespace piper::plan
