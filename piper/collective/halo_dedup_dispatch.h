// Dispatch of tokens by HALO with deduplication (halo_dedup.h): each token crosses to a remote unit
// once and is spread there.
//
//   input of a0      | t0 | t1 | t2 | t3 |             one row a token
//   packed for B     | t0 | t2 | t3 |                  those with a target in B        -> b0
//   b0's scratch     | t0 | t2 | t3 |                  as it came, piece by piece
//   packed for b1    | t2 | t3 |                       -> b1, into its output
//   b0's output      ... | t0 | t3 | ...               picked from scratch
//
// Rows that follow each other already are sent from where they lie, without packing. Scratch, in
// rows: what leaves for other units or members and has to be packed, and what arrives for the unit.
#pragma once

#include <piper/collective/halo_dedup.h>

#include <cstdint>

namespace piper::collective {

MemberSteps halo_dedup_dispatch(int64_t member, const Topology& topology, const DedupKnown& known,
                                const Dedup& dedup);

}  // namespace piper::collective
