// Which all-to-all, and in which pieces: chosen by price, which is the time that its very steps
// take in virtual time (sim/simulate_flows.h) over the ports of the machine. No thresholds: what
// wins at which size follows.
//
// Configurations of one algorithm that differ in the bytes of a piece are all tried, by powers of
// two, up to 64 pieces a message: the time it takes does not grow with the bytes.
#pragma once

#include <piper/collective/algorithms.h>
#include <piper/sim/fabric.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::plan {

struct PricedExchange {
  strategy::AllToAll algorithm = strategy::AllToAll::kFlat;
  int64_t chunk_bytes = 0;  // 0: not cut
  double seconds = 0;
};

struct ExchangeChoice {
  std::vector<PricedExchange>
      priced;  // ascending in seconds, ties in the order of strategy::kAllToAlls
  // The busiest port when every pair's bytes take their own route. Algorithms that forward can be
  // below it: they spread what is for a hot rank over the NICs of its node.
  double straight_limit_seconds = 0;
  const PricedExchange& best() const { return priced.front(); }
};

// Bytes from every member to every other: bytes_of(from, to). Throws InvalidInput for a fabric with
// problems or a topology of other members. Thread-safe.
ExchangeChoice choose_exchange(const sim::Fabric& fabric, const collective::Topology& topology,
                               const collective::CountOf& bytes_of,
                               std::span<const strategy::AllToAll> among = strategy::kAllToAlls);

// One configuration's price.
double exchange_seconds(const sim::Fabric& fabric, const collective::Topology& topology,
                        const collective::CountOf& bytes_of, strategy::AllToAll algorithm,
                        int64_t chunk_bytes = 0);

}  // namespace piper::plan
