// The exchange of a group: the best few by closed form, and which of those is the fastest when its
// very steps are simulated.
//
// Closed forms are some percent off the simulated steps (cost/all_to_all_config.h), now and then
// more than configurations differ: what is within kNearest of the best closed form is simulated in
// virtual time, and so is one message a pair; first each algorithm in the pieces that the closed
// form likes best, in that order, then in other pieces, up to kMostSimulatedPairs. Groups of more
// than kMostSimulatedMembers keep the closed form's choice, and so do loads that no counts tell
// (halo-dedup's tokens).
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/all_to_all_config.h>

#include <cstdint>

namespace piper::plan {

inline constexpr double kNearest = 0.5;
inline constexpr int64_t kMostSimulatedMembers = 512;
// Pairs of members in all simulations of one choice; one takes some 0.3 us. Groups of 512 simulate
// 11 configurations, those of 128 all.
inline constexpr int64_t kMostSimulatedPairs = 3'000'000;
// By so much a simulated configuration must be faster than one message a pair to be chosen.
inline constexpr double kSimulatedTie = 0.02;

// `flat_part` as in cost::best_all_to_all. Pure; thread-safe.
cost::AllToAllConfig pick_exchange(const cluster::Cluster& cluster, const cost::Group& group,
                                   const cost::ExchangeLoad& load,
                                   const cost::FixedAllToAll& fixed = {}, double flat_part = 1);

}  // namespace piper::plan
