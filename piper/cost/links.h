// What operations that run at the same time share: the ports of devices, nodes, switch groups and
// racks.
//
// A port is one direction (out, in) of what a unit of the machine speaks through at one level:
//
//   level 0        every device has its own
//   level l > 0    the NICs of a unit of level l-1 (num_nics), divided among its devices;
//                  where there are fewer NICs than devices, or none is counted (an uplink), one
//                  port serves several devices
//
// An operation moves bytes for `transfer_seconds` of its price (the rest is latency, gaps between
// messages and additions) and needs, while it does, a part of each port that it crosses: 1 is what
// one device may take of it (device_bandwidth). Alone no operation needs more than a port has, so
// alone each takes exactly what its price says. How several share is the simulator's business
// (sim/simulate.h).
//
// Operations whose transfer is less than kLeastTransfer of their price (counts, statistics: all
// latency) share nothing, and needs below that part of a device's share are left out.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/cluster/cluster.h>
#include <piper/collective/topology.h>
#include <piper/cost/exchange_time.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::cost {

inline constexpr double kLeastTransfer = 0.01;

// In units of a device's share: integers, so that sums do not depend on their order.
using PortUnits = int64_t;
inline constexpr PortUnits kWholeShare = PortUnits{1} << 24;

struct PortNeed {
  int32_t port = 0;
  PortUnits units = 0;
};

struct Links {
  std::vector<PortUnits> capacity;       // by port
  std::vector<PortNeed> needs;           // of all patterns, one after another
  std::vector<uint32_t> first_need;      // by pattern, one more at the end
  std::vector<int32_t> pattern;          // by operation; -1: shares nothing
  std::vector<double> transfer_seconds;  // by operation
  bool empty() const { return pattern.empty(); }
  std::span<const PortNeed> of(int32_t pattern_id) const {
    const size_t i = static_cast<size_t>(pattern_id);
    return {needs.data() + first_need[i], first_need[i + 1] - first_need[i]};
  }
};

// Where the members of a group on these devices (counted in the order of the cluster's levels) sit:
// nodes, then every further level that tells some of them apart; neighbours share a NIC.
collective::Topology topology_of(const cluster::Cluster& cluster, std::span<const int64_t> devices);
// The same of ranks 0 .. num_ranks - 1, with rank i on device i.
collective::Topology topology_of_ranks(const cluster::Cluster& cluster, int64_t num_ranks);

// What an operation needs, and for how long.
struct Transfer {
  double seconds = 0;  // alone
  std::vector<PortNeed> needs;
};

// The ports of a cluster. `is_here`, by rank: ranks that take part in the graph (rank i sits on
// device i). Where one pipeline stands for all (num_here x n = world), each of its ranks stands for
// n devices, and ports that serve several devices are as much smaller. The cluster
// outlives it. Thread-safe after construction.
class Ports {
 public:
  Ports(const cluster::Cluster& cluster, std::vector<char> is_here);
  Ports(cluster::Cluster&& cluster, std::vector<char> is_here) = delete;

  const std::vector<PortUnits>& capacity() const { return capacity_; }

  Transfer all_to_all(const Group& group, double pair_bytes) const;
  // Uneven, in both forms of all_to_all_seconds.
  Transfer all_to_all(std::span<const Rank> members, std::span<const double> bytes) const;
  Transfer all_to_all(const Group& group, std::span<const double> to_bytes) const;
  Transfer all_reduce(const Group& group, double bytes,
                      strategy::Reduction algorithm = strategy::Reduction::kDirect) const;
  Transfer message(Rank from, Rank to, double bytes) const;

  // Operations that are priced elsewhere: for so many seconds an end needs `part` of its share of
  // every level (level_needs in gradient_reduction_overlap.h). All members send and receive; a
  // message leaves one and enters the other.
  Transfer among(std::span<const Rank> members, std::span<const double> part, double seconds) const;
  Transfer message(Rank from, Rank to, std::span<const double> part, double seconds) const;

 private:
  enum Direction : uint8_t { kOut, kIn };
  struct Uses {  // seconds that an operation keeps a port busy
    std::vector<std::pair<int32_t, double>> seconds;
    double longest = 0;  // of one device
  };
  class Uneven;
  int32_t port(size_t level, int64_t device, Direction direction) const;
  void add(const Traffic& traffic, int64_t device, Direction direction, Uses& uses) const;
  void add(std::span<const double> part, int64_t device, Direction direction, Uses& uses) const;
  Transfer finish(Uses uses) const;
  // Where the exchange itself was measured: a device's own port, for so long.
  void as_measured(Traffic& sent, Traffic& received) const;
  Transfer measured(const Group& group, double seconds) const;
  Transfer in_two_ways(const Group& group, const ReductionWays& ways, double bytes) const;

  const cluster::Cluster& cluster_;
  std::vector<char> is_here_;
  std::vector<int64_t> devices_of_port_;  // by level
  std::vector<int64_t> first_port_;       // by level
  std::vector<PortUnits> capacity_;
};

}  // namespace piper::cost
