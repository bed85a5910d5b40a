// Seconds of communication between ranks that sit on a cluster's levels; rank i sits on device i.
//
// A message between two devices belongs to the level that is the innermost to hold both. What
// leaves a unit of level l-1 crosses the links of level l, and those of level l+1 too when it goes
// further:
//
//   seconds = max over levels l of  bytes that one device sends across level l / its share of that
//   level
//             + the latency of the outermost level used
//             + kMessageGapSeconds for every message beyond the first that leaves the innermost
//             level
//
// (bytes that stay inside the innermost level load only its own links). A device's share of level l
// is the level's bandwidth per device, and never more than its share of the NICs of its
// unit: num_nics x nic_bytes_per_second / devices of the unit, because all devices of a unit
// communicate at once (every expert group of the world exchanges at the same time). In an uneven
// exchange members that sit behind one port (devices_of_port) have their shares of it together:
// what one leaves, the others take.
//
// Inside one node, a cluster that has measured its exchange (numbers["all_to_all_latency_seconds"]
// and
// ["all_to_all_bytes_per_second"], of the bytes one member sends to all others together, as `piper
// profile` writes them) is taken at its word.
//
// Pure functions, thread-safe.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/cluster/cluster.h>
#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/strategy.h>
#include <piper/strategy/token_chunk.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace piper::cost {

// Time between two messages that one device injects (LogGP's g): about 1 us on RDMA networks. A
// cluster may state its own as numbers["message_gap_seconds"].
inline constexpr double kMessageGapSeconds = 1e-6;

// One device's share of a level's bandwidth when all devices of the level communicate, bytes/s.
double device_bandwidth(const cluster::Cluster& cluster, size_t level);

// Devices that one port of a level serves: a NIC, or what leads out of a unit where no
// NICs are counted; of level 0 every device has its own.
int64_t devices_of_port(const cluster::Cluster& cluster, size_t level);

inline constexpr size_t kMaxLevels = 16;  // as cluster's reader allows

// What one device sends (or receives) in one operation, by the level that the messages belong to.
struct Traffic {
  std::array<double, kMaxLevels> bytes{};
  std::array<double, kMaxLevels> messages{};
  void add(size_t level, double message_bytes, double count = 1) {
    bytes[level] += message_bytes * count;
    messages[level] += count;
  }
};

// Seconds that the device's share of a level is busy with the traffic, alone: what belongs to the
// level and, above the innermost, what crosses it on its way further.
double busy_seconds(const cluster::Cluster& cluster, const Traffic& traffic, size_t level);

// How long the ports are busy with what the members of one operation move in one direction, the
// longest of all levels.
class PortSeconds {
 public:
  // The cluster outlives it.
  explicit PortSeconds(const cluster::Cluster& cluster) : cluster_(cluster) {}
  // Adds one member: call it for every member, neighbours one after another, also for one that
  // moves nothing.
  void add(const Traffic& traffic, int64_t device);
  double longest() const;

 private:
  struct Port {
    int64_t number = -1;
    double seconds = 0, members = 0;  // on one device's share; of those that have one
    double shared() const { return members > 0 ? seconds / members : 0; }
  };
  const cluster::Cluster& cluster_;
  std::array<Port, kMaxLevels> current_{};  // by level: the one that the last member sits behind
  double longest_ = 0;                      // of the ports before it
};

// Ascending devices: `run` of them `stride` apart, the next run `jump` behind the begin of the
// last, and so on. run 0: all of them equally spaced. The groups of every axis of the mesh are of
// this form, under either placement.
struct Group {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t size = 1;
  int64_t run = 0;
  int64_t jump = 0;
  int64_t device(int64_t member) const {
    return run == 0 ? first + member * stride : first + member / run * jump + member % run * stride;
  }
  // Members on devices below `device`.
  int64_t before(int64_t device) const;
  // Whether members 0, step, 2 step, ... are of this form for every first member below `step`, and
  // `step` members that follow each other are.
  bool divides_by(int64_t step) const;
  // Members begin, begin + step, ..., of a step that it divides by, or of 1.
  Group part(int64_t begin, int64_t step, int64_t count) const;
};

// Messages of `pair_bytes` from one member to all others of the group.
Traffic even_traffic(const cluster::Cluster& cluster, const Group& group, int64_t member,
                     double pair_bytes);

// Inside one node a cluster that has measured its exchange is taken at its word.
bool is_measured_all_to_all(const cluster::Cluster& cluster, const Group& group);
bool is_measured_all_reduce(const cluster::Cluster& cluster, const Group& group);

// Every member sends pair_bytes to every other. The slowest member counts.
double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group, double pair_bytes);

// Uneven: bytes[i * n + j] from member i to member j; what a member keeps is free. The slowest
// port counts. `members` are devices, ascending.
double all_to_all_seconds(const cluster::Cluster& cluster, std::span<const Rank> members,
                          std::span<const double> bytes);

// Every member sends to_bytes[j] to member j (a load on experts that is the same wherever rows come
// from): the same seconds as the form above, in O(members x levels).
double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group,
                          std::span<const double> to_bytes);

// The same of what goes to the members `distances` behind each alone (strategy::is_in_group).
double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group,
                          std::span<const double> to_bytes, const strategy::TokenChunk& distances);

// The traffic of one member in that exchange.
struct TwoWays {
  Traffic sent, received;
};
class UnevenTraffic {
 public:
  // The cluster outlives it.
  UnevenTraffic(const cluster::Cluster& cluster, const Group& group,
                std::span<const double> to_bytes);
  TwoWays of(int64_t member) const;
  TwoWays of(int64_t member, const strategy::TokenChunk& distances) const;

 private:
  const cluster::Cluster& cluster_;
  Group group_;
  std::vector<double> before_;  // by member: bytes to all before it; one more at the end
};

// A reduction's exchanges, each once there and once back: `inside` among the members of a node,
// `across` among those that carry the same shares in every node. Direct: `across` alone, among all.
// `pair_bytes`: of a message between two members. Groups whose nodes hold different numbers of
// members are taken as even.
struct ReductionWay {
  Group group;
  double pair_bytes = 0;
};
struct ReductionWays {
  ReductionWay inside, across;
};
ReductionWays reduction_ways(const cluster::Cluster& cluster, const Group& group, double bytes,
                             strategy::Reduction algorithm);

// Reduce-scatter, additions in a fixed order, all-gather; each member owns one share of the buffer.
// Long buffers of the hierarchical algorithm go in pieces, one of which crosses while another is
// added inside.
double all_reduce_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm = strategy::Reduction::kDirect);
// Its two halves, each taken at its word where the machine has measured it inside one node
// (numbers["reduce_scatter_latency_seconds"], ["reduce_scatter_bytes_per_second"], the same of
// all_gather), else half of the all-reduce.
double reduce_scatter_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                              strategy::Reduction algorithm = strategy::Reduction::kDirect);
double all_gather_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm = strategy::Reduction::kDirect);
// What takes `inside` and `across` seconds for a whole buffer in one piece.
double reduction_seconds(double inside, double across, double bytes);
inline constexpr double kReductionPieceBytes =
    4.0 * static_cast<double>(collective::kReductionPiece);  // fp32

// Every member tells every other `num_counts` counts of 8 bytes.
double exchange_counts_seconds(const cluster::Cluster& cluster, const Group& group,
                               int64_t num_counts);

// One message, while the other devices of both units send theirs.
double point_to_point_seconds(const cluster::Cluster& cluster, int64_t from, int64_t to,
                              double bytes);

// Every member sends `bytes` to the next of a ring: as one message, and not faster than a gather's
// part.
double ring_hop_seconds(const cluster::Cluster& cluster, const Group& group, double bytes);

// These ranks as a group; requires that they lie in equal runs (PIPER_CHECK).
Group group_of(std::span<const Rank> members);
// The same of a rank's group on an axis, not of kPipeline, kEmbeddingTable, kWorld.
Group group_of(const strategy::RankLayout& layout, strategy::Axis axis, Rank rank);

}  // namespace piper::cost
