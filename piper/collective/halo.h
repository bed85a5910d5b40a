// What the forms of HALO share (Piper, section V): words, and who must know which counts.
//
// A unit is a node, or for HALO by switch group a switch group. A row is what one member has for
// one other. Rows for a remote unit cross to the sender's counterpart there (the member in the same
// place, behind the same NIC), who hands them on inside:
//
//        unit A                unit B
//   a0 o---o a1            b0 o---o b1       a0's rows for b0 and b1 go a0 -> b0, then b0 -> b1
//       \________________/                   phase I   inside the unit, straight
//        a NIC of each                       phase II  between counterparts
//                                            phase III inside the unit: what arrived for others
//
//   phase I  ||  (phase II -> phase III)     eq. 13
#pragma once

#include <piper/collective/topology.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

// Beside which phase the exchange inside the unit is executed. Under III it waits for all of the
// member's phase II.
enum class PhaseOne : uint8_t { kUnderTwo, kUnderThree };

// No limit on the units of a message.
inline constexpr int64_t kUncut = INT64_MAX;

// The targets t of which member `to` must know count(from, t), ascending: of a counterpart all
// members of its unit, of anyone else itself. A member knows its own row of counts and is told
// these by every other member before it can write its steps.
std::vector<int32_t> halo_counts_told(int64_t from, int64_t to, const Units& units);

// The members of other units for whom `member` is the counterpart: unit by unit, who sends to it
// first comes first (units_towards), in a unit ascending.
std::vector<int32_t> halo_sources(int64_t member, const Units& units);

// The units that hold others than `member`'s, in its order of sending (unit_order.h; of nodes
// without racks own + 1, own + 2, ...), and in the order in which they send to its own. In units of
// several nodes each node begins one unit further on in that order than the node before it
// (Units::turn), and comes round to the first ones last.
std::vector<int32_t> units_from(int64_t member, const Units& units);
std::vector<int32_t> units_towards(int64_t member, const Units& units);

// The others of the unit in `member`'s order of sending and of receiving: place + 1, ... and
// place - 1, ...
std::vector<int32_t> unit_targets(int64_t member, const Units& units);
std::vector<int32_t> unit_sources(int64_t member, const Units& units);

}  // namespace piper::collective
