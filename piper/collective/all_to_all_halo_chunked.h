// HALO with phases II and III in overlapping chunks and rotated rows: the form that wins with long
// messages. As printed, phase III waits for all of phase II, and costs what the inner links cost on
// top of what the NICs cost; here a chunk is handed on while the next one crosses.
//
// Rows cross in packets of at most `chunk` units: neighbouring rows together while they fit, a
// longer row in equal pieces. A packet goes straight from the sender's input; what is for the
// counterpart itself arrives straight in its output, the rest in scratch, from where each piece
// goes straight into the output of whom it is for. No copy (but of the own row, and of the
// counterpart's row where a packet holds it among others).
//
//   a1's input:          | .. | ->b0 | ->b1 | ->b2 | ->b3 | .. |          counterpart: b1
//   packets, in order:   ->b2, ->b3, ->b0, ->b1                           rotated: first place + 1
//   b1's scratch:        | a1->b2 | a1->b3 | a1->b0 |   and for every other source
//   then:                b1 -> b2, b1 -> b3, b1 -> b0                   each as soon as it is there
//
// While all counterparts of a node hand on their first packet, each speaks to another member, and
// so on through the order: that is what the rotation is for. It also brings the counterpart's own
// row, which is not handed on, last. Where all rows of a message fit one packet, it is not rotated:
// one message crosses, as in Algorithm 1 of the paper.
//
// Asks for counts (member, *), (*, member) and, for every source s whose counterpart in the
// member's unit it is, (s, the unit's members): halo_counts_told. Nothing is sent where there is
// nothing. Rows of members whose numbers do not follow each other do not share a packet.
//
// Even nodes of R members, M remote ones, D units a pair: scratch M (R - 1) D when chunk <= D, and
// M R D when chunk >= R D. With a single unit this is all_to_all_node_aware.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>

namespace piper::collective {

struct HaloChunks {
  int64_t chunk = kUncut;  // >= 1
  PhaseOne phase_one = PhaseOne::kUnderTwo;
  size_t level = 0;  // of the topology: what is a unit
};

MemberSteps all_to_all_halo_chunked(int64_t member, const Topology& topology, const CountOf& count,
                                    const HaloChunks& options = {});

}  // namespace piper::collective
