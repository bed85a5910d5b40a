// Which experts have copies, and on which ranks: the homes stay, every rank fills as many slots.
//
// Copies come and go at no cost beside that of every step (schedule/expert_copies.h), so both look
// at loads alone.
#pragma once

#include <piper/balance/rank_load.h>

#include <cstdint>

namespace piper::balance {

// Slot by slot the copy that makes the ranks most even (the least sum of squares of their rows):
// what EPLB's replication does for a placement from scratch (replicate.h), for homes that stay. Of
// equals the first expert, then the first rank. O(R E n) for R slots on n ranks.
//
// `homes`: copies that it has are left out. Requires homes.has_homes_first(), as many loads as
// experts and no more slots on a rank than experts of others (PIPER_CHECK); so does shadow().
ExpertPlacement share_hot(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank);

// The experts with most rows are copied to every other rank, as long as there are slots: a shadow
// (FasterMoE, He et al. 2022), for which no row leaves its rank.
ExpertPlacement shadow(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank);

// Slots of a rank for copies.
int64_t slots_for_copies(const ExpertPlacement& placement);

}  // namespace piper::balance
