// HALO by switch group (Piper, section V-C): "the four nodes sharing a switch form a single
// locality domain, and inter-group communication is batched across this boundary". The unit of
// HALO's phases is then the switch group:
//
//   phase I    inside the group, straight, its nodes' NICs included: they are one hop apart
//   phase II   to the counterpart in every other group: rows for all of that group's members
//   phase III  inside the group, to whom each row is for
//
//   group of 2 nodes x 2 members:   (a1, place 1 of G) -> (c1, place 1 of H) -> c0, d0, d1
//
// A member sends G - 1 messages of the size of a whole group between groups where HALO over nodes
// sends N - 1 of the size of a node; phase III leaves the node, so that what crosses the boundary
// goes through a NIC twice. It pays where the boundary is the narrow place, or far away. The
// chunks are those of all_to_all_halo_chunked, on level 1 of the topology; where there is none, on
// level 0.
#pragma once

#include <piper/collective/all_to_all_halo_chunked.h>

#include <cstdint>

namespace piper::collective {

// The level whose units are the phases' units.
size_t halo_switch_level(const Topology& topology);

MemberSteps all_to_all_halo_switch(int64_t member, const Topology& topology, const CountOf& count,
                                   int64_t chunk = kUncut,
                                   PhaseOne phase_one = PhaseOne::kUnderTwo);

}  // namespace piper::collective
