// Which experts have copies, and on which ranks: the homes stay, every rank fills as many slots.
//
// Copies come and go at no cost beside that of every step (schedule/expert_copies.h), so all of
// these look at loads alone.
#pragma once

#include <piper/balance/rank_load.h>

#include <cstdint>

namespace piper::balance {

// Slot by slot the copy that makes the ranks most even (the least sum of squares of their rows):
// what EPLB's replication does for a placement from scratch (replicate.h), for homes that stay. Of
// equals the first expert, on the rank that has least, the first of them. O(R (E + n log n)) for R
// slots on n ranks, but for experts with many copies.
//
// `homes`: copies that it has are left out. Requires homes.has_homes_first(), as many loads as
// experts and no more slots on a rank than experts of others (PIPER_CHECK); so do the others.
ExpertPlacement share_hot(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank);

// What a run chooses: the more even of two placements, improved by exchanges. One is share_hot()'s.
// The other keeps to a limit for the busiest rank, the least that is found by halving: experts of
// ranks above it get copies elsewhere; copies go, the heaviest first, to the rank that has least;
// and where even that is above the limit then, its own experts get copies, too. An exchange gives
// the slot of a copy to another expert, or swaps the copies of two ranks, the busiest one's or of
// its experts; the best is taken as long as one helps, at most 64. Never more rows on the busiest
// rank than by share_hot().
ExpertPlacement share_evenly(const ExpertPlacement& homes, const Loads& loads,
                             int64_t slots_per_rank);

// The experts with most rows are copied to every other rank, as long as there are slots: a shadow
// (FasterMoE, He et al. 2022), for which no row leaves its rank.
ExpertPlacement shadow(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank);

// Slots of a rank for copies.
int64_t slots_for_copies(const ExpertPlacement& placement);

}  // namespace piper::balance
