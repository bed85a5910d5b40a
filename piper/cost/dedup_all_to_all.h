// Seconds and scratch of HALO with deduplication (collective/halo_dedup.h) in closed form, as
// all_to_all_config.h has them of the exchanges that counts describe. R members a node, N nodes,
// M = N - 1, p pieces; a member has P bytes of tokens for another node and q bytes for another
// member:
//
//   dispatch    M p messages of P / p, R - 1 of q to the own node; of every piece that comes in,
//               R - 1 of q / p go on. Rows that leave are packed, those that stay are copied to
//               their place
//   combine     M p (R - 1) messages of q / p inside, added there; M p of P / p to other nodes,
//               added again
//   weights     beside every second exchange one number a copy, straight from rank to rank
//
// The four exchanges of a layer (dispatch and combine, forward and backward) are priced alike, by
// the mean of the two. Pure functions, thread-safe.
#pragma once

#include <piper/cost/all_to_all_config.h>

#include <cstdint>

namespace piper::cost {

struct DedupSeconds {
  double dispatch = 0, combine = 0, weights = 0;
  // What the busiest port alone takes, its latency included.
  double ports = 0;
  double mean() const { return (dispatch + combine) / 2 + weights / 2; }
};
DedupSeconds dedup_seconds(const ExchangeSite& site, int64_t chunk_bytes, const ExchangeLoad& load);

// The scratch of one member in a dispatch, with even loads; a combine needs as much.
double dedup_scratch_bytes(const ExchangeSite& site, const ExchangeLoad& load);

}  // namespace piper::cost
