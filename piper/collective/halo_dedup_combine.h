// Combine by HALO with deduplication (halo_dedup.h): the results for a token are added inside each
// unit first, then one row crosses from there. The exact mirror of halo_dedup_dispatch.
//
//   b1's input      ... | y(t2) | y(t3) | ...          -> b0, from where it lies
//   b0's sums       | y0(t0) | y1(t2) | y0(t3) + y1(t3) |   a0's tokens in B; -> a0, by pieces
//   a0's output     | t0 | t1 | t2 | t3 |              own unit's results, then += B's rows, += C's
//
// Adding goes by lists of row pairs: the first result for a row is copied, the others are added. A
// unit's rows wait for those of the units before it: the order of addition is fixed, not that of
// arrival. Scratch, in rows: what arrives from others, and one sum for each token that enters the
// unit.
#pragma once

#include <piper/collective/halo_dedup.h>

#include <cstdint>

namespace piper::collective {

MemberSteps halo_dedup_combine(int64_t member, const Topology& topology, const DedupKnown& known,
                               const Dedup& dedup);

}  // namespace piper::collective
