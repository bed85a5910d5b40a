// The exchange of one mixture layer in virtual time, of all expert groups at once, where a
// placement puts them.
#pragma once

#include <piper/cluster/allocation.h>
#include <piper/placement/placement_price.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <optional>
#include <span>

namespace piper::placement {

inline constexpr int64_t kMostSimulatedMessages = 400'000;  // about a second

// Seconds until the last group is done, `pair_bytes` between every two members of a group, by the
// strategy's algorithm on sim::fabric_of(allocation.machine). Nothing when no group exchanges,
// tokens travel by their routes (deduplicated), or `most_messages` are not enough for flat ones.
std::optional<double> placed_exchange_seconds(const cluster::Allocation& allocation,
                                              const Slots& slots, std::span<const RankGroup> groups,
                                              const RankSlots& placement, double pair_bytes,
                                              const strategy::Strategy& strategy,
                                              int64_t most_messages = kMostSimulatedMessages);

}  // namespace piper::placement
