// All-to-all in ceil(log2 n) rounds (Bruck et al. 1997), for any n and uneven counts: rows travel
// by way of others, a power of two a round, many of them in one message. Fewest messages of all; a
// row is sent up to log2 n times, and none of this knows nodes.
//
// The distance of a row from s to t is d = (s - t) mod n. In round k a member passes the rows whose
// distance has bit k to the member 2^k below it; a row with distance 6 = 110b travels in rounds 1
// and 2. A round's message holds its rows by ascending distance:
//
//   round 1 of 8:   | d = 2 | 3 | 6 | 7 |     2 and 3 have arrived, from i + 2 and i + 3: in the
//                                             order of the output
//
// The input lies by descending distance, so that the first hop of every row is packed one by one;
// later hops and the last copy take runs of up to 2^k rows.
//
// Even counts of D units: round k sends D for each d in [1, n) with bit k. Uneven counts: a
// member must know the rows that pass through it: (i + d mod 2^k, that - d) for every d with
// bit k and every round k, bruck_counts_told. The next round's messages wait for this round's:
// never more than one send and one receive in flight, executes on a blocking transport.
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

MemberSteps all_to_all_bruck(int64_t member, const Topology& topology, const CountOf& count);

// The targets t of which member `to` must know count(from, t), ascending.
std::vector<int32_t> bruck_counts_told(int64_t from, int64_t to, int64_t num_members);

}  // namespace piper::collective
