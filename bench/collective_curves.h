// All-to-alls simulated in virtual time on a described cluster: what `piper bench collectives`
// prints.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/sim/fabric.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct CurveQuestion {
  std::vector<int64_t> nodes{2, 4, 8, 16, 32, 64};
  std::vector<int64_t> bytes{64, 4096, 65536, 1048576};  // a pair
  std::vector<std::string> placements{"packed", "scattered"};
  int64_t units = 8;                      // that "scattered" and "minimal" deal nodes out to
  double pair_bytes_per_second = 96e9;    // of Frontier: 58.4 Tb/s of a cabinet to 76 others
  std::optional<double> message_seconds;  // start-up; empty: sim::fabric_of's
  bool by_turns = false;                  // sim::Turns::kByPeer
};

struct CurvePoint {
  struct Time {
    std::string algorithm;
    double seconds = 0;
    std::string limited_by;  // what is busy longest
  };
  std::string placement;
  int64_t nodes = 0, bytes = 0;
  std::vector<Time> times;
  double limit_seconds = 0;  // sim::exchange_limit
  const Time& of(const std::string& algorithm) const;
  const Time& best_halo() const;  // of the algorithms whose name begins with "halo"
};
std::vector<CurvePoint> simulate_curves(const cluster::Cluster& cluster,
                                        const CurveQuestion& question);

// The fewest nodes from which on the best form of HALO is more than 10 % faster at every point; 0:
// none.
struct Crossover {
  std::string placement, opponent;
  int64_t bytes = 0, nodes = 0;
};
std::vector<Crossover> crossovers(const std::vector<CurvePoint>& points);

// Ranks on ever more packed nodes (Piper, Fig. 5), flat in node-aware order.
struct RankPoint {
  int64_t ranks = 0, nodes = 0;
  int64_t bytes_a_rank = 0;  // for all ranks together, its own part counted, as in nccl-tests
  double seconds = 0;
  double bus_bandwidth = 0;  // bytes_a_rank * (n-1)/n / seconds
  // Eq. 6 with b the batch of the whole group: 2bskd/EP bytes of a rank through its share of a NIC
  // (4bskd/(EP B_NIC) where two share one), times (EP-1)/EP. On one node: 0, none.
  double eq6_seconds = 0;
  double across_seconds = 0;  // the same, of the bytes that leave the node
};
std::vector<RankPoint> simulate_ranks(const cluster::Cluster& cluster,
                                      const CurveQuestion& question);

// HALO as printed, packed. Alone: the others' counts are zero.
struct PhasePoint {
  int64_t nodes = 0, bytes = 0;
  double one_seconds = 0, two_three_seconds = 0;
  double under_two_seconds = 0, under_three_seconds = 0;
  double hidden_under_two() const { return hidden(under_two_seconds); }
  double hidden_under_three() const { return hidden(under_three_seconds); }
  // At most all of it, also where phase I between them makes the others meet less.
  double hidden(double together) const {
    return std::min(1.0, 1 - (together - two_three_seconds) / one_seconds);
  }
};
std::vector<PhasePoint> simulate_phases(const cluster::Cluster& cluster,
                                        const CurveQuestion& question);

}  // namespace piper::cli
