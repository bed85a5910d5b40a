// On how many members and nodes the experts of a token lie: what an exchange moves that sends a
// token to a node once (collective/halo_dedup.h), over what one moves that sends every copy.
//
// Pure functions, thread-safe.
#pragma once

#include <piper/model/model.h>

#include <cstdint>

namespace piper::cost {

// The chance that a token has at least one of its experts on a unit that holds `experts_of_unit` of
// them in a row, when routers favour none:
//
//   1 - C(E - e, k) / C(E, k)          k different ones of E, e of them on the unit
//
// and where routing is limited to `top_groups` of `num_groups` (DeepSeek-V3) the mean of that over
// the groups that may be chosen. 0 for a model without experts.
double chance_on_unit(const model::FeedForward& f, double experts_of_unit);

// Rows over copies, of everything that a member sends.
struct DedupRatios {
  double copies = 1;  // of a token
  double across = 1;  // rows that enter other nodes over copies for them
  double inside = 1;  // rows that members hold in the end over copies for them
  double row_bytes =
      0;  // of a token; beside each copy travels its weight of kWeightBytes. 0: none does
  bool operator==(const DedupRatios&) const = default;
};
inline constexpr double kWeightBytes = 4;

// To be expected of a group of `members` with `node_members` on a node.
DedupRatios expected_spread(const model::FeedForward& f, double members, double node_members,
                            double row_bytes);

}  // namespace piper::cost
