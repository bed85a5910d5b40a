// Seconds of one operation on one device, and of one collective between equally spaced devices:
// what the layer prices of layer_price.h are made of.
//
// Products and attention come from the cluster's measured curves where it has them, else from its
// stated efficiency. Collectives are rings: T = latency + (n - 1) step + wire / bandwidth, with the
// bandwidth of the tightest level that the ring crosses: a level's share of a device times the
// members that its units hold, because every group of an axis communicates at the same time. The
// group that counts is the one that fares worst: where a degree does not divide a node (tensor
// parallelism of 4 with 6 devices), some groups lie in two nodes though others lie in one. Whole
// nodes are taken of each larger unit as the groups want them, where there are units enough: of 72
// devices in a rack 64 for groups of 64 or of 128.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/gradient_reduction_overlap.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/strategy.h>
#include <piper/strategy/token_chunk.h>

#include <array>
#include <cstdint>

namespace piper::cost {

// One step of a ring where the cluster states none ("node_ring_step_seconds", "ring_step_seconds"):
// inside a node, and through the network.
inline constexpr double kNodeStepSeconds = 2.5e-6;
inline constexpr double kOuterStepSeconds = 6e-6;

class Rates {
 public:
  // Throws InvalidInput when the cluster has no figures for the precision. The cluster outlives it.
  Rates(const cluster::Cluster& cluster, strategy::Precision precision);
  // The same for the groups of a job of num_ranks devices; without it, of all devices.
  Rates among(int64_t num_ranks) const;

  // m x k times k x n, in one launch.
  double product_seconds(double m, double n, double k) const;
  // `flops` of causal attention (both products) at this length and head size.
  double attention_seconds(double flops, double sequence, double head_dim, bool backward) const;
  // One kernel that reads and writes `bytes`.
  double pass_seconds(double bytes) const;
  double launch_seconds() const { return launch_; }
  double peak_flops_per_second() const { return peak_; }

  // `size` members, `stride` devices apart: the worst of the groups that are so cut from all ranks,
  // size x stride after size x stride. `bytes`: the whole buffer.
  CommTime all_gather(int64_t size, int64_t stride, double bytes) const;
  double all_gather_seconds(int64_t size, int64_t stride, double bytes) const {
    return all_gather(size, stride, bytes).total();
  }
  double reduce_scatter_seconds(int64_t size, int64_t stride, double bytes) const {
    return all_gather_seconds(size, stride, bytes);
  }
  double all_reduce_seconds(int64_t size, int64_t stride, double bytes) const {
    return 2 * all_gather_seconds(size, stride, bytes);
  }
  // Every member holds `bytes` for all members together, in even parts. With `copies` > 1 each row
  // goes to so many members, and crosses to a node once (deduplication).
  CommTime all_to_all(int64_t size, int64_t stride, double bytes, double copies) const;
  // The same buffer, of which each member sends the parts at `distances` from itself
  // (strategy::is_in_group): as long as these keep a member's share of a level busy, in the mean of
  // all members.
  CommTime all_to_all(int64_t size, int64_t stride, double bytes,
                      const strategy::TokenChunk& distances) const;
  // Any other exchange of such a group, of rows that `routed` sent out (cost/all_to_all_config.h):
  // as much below its closed form as the flat one, `flat` seconds, is below its own (start-ups,
  // which all_to_all() leaves out). A ratio above 1 would grow with the bandwidth of a level that
  // only the flat one's form knows. And its scratch.
  double exchange_seconds(int64_t size, int64_t stride, const AllToAllConfig& config,
                          const ExchangeLoad& load, const Routed& routed, double flat) const;
  // Seconds of one over those of one message a pair in node-aware order.
  double over_node_aware(int64_t size, int64_t stride, const AllToAllConfig& config,
                         const ExchangeLoad& load) const;
  double exchange_scratch(int64_t size, int64_t stride, const AllToAllConfig& config,
                          double pair_bytes, const Routed& routed) const;
  // The level that messages between the ranks of two stages cross, member to member: the highest of
  // all members.
  size_t level_between(const strategy::RankLayout& layout, int64_t stage, int64_t other) const;
  CommTime message(size_t level, double bytes) const;
  // What a member of such a collective (either end of a message) needs of its share of each level
  // while bytes move: 1 at the level that decides.
  LevelUtilization ring_needs(int64_t size, int64_t stride) const;
  // What all_to_all() needs when an exchange of these bytes takes `transfer` seconds for them: what
  // it keeps a level busy never grows with a bandwidth, however that changes its seconds.
  LevelUtilization all_to_all_needs(int64_t size, int64_t stride, double bytes, double copies,
                                    double transfer) const;
  LevelUtilization message_needs(size_t level) const;
  // Host memory, over the device's link.
  double host_copy_seconds(double bytes) const { return bytes / host_bytes_per_second_; }
  // Level of the link that ties the group together, for people: "node", "pod".
  const char* link_of(int64_t size, int64_t stride) const;

 private:
  using BusySeconds = std::array<double, kMaxLevels>;  // by level
  // The worst of such groups.
  struct Worst {
    size_t level = 0;   // the highest that one of them crosses
    int64_t first = 0;  // device of the first member, of one that crosses it with fewest neighbours
    // By level, up to the highest: fewest members in one unit of the level below.
    std::array<double, kMaxLevels> inside{};
  };
  Worst worst_of(int64_t size, int64_t stride) const;
  bool whole_groups_fit(int64_t unit, int64_t block, int64_t num_ranks) const;
  int64_t equal_share(int64_t unit, int64_t block, int64_t num_ranks) const;
  double step_seconds(size_t level) const;
  // How long a member keeps its share of every level busy.
  BusySeconds ring_busy(int64_t size, int64_t stride, double bytes) const;
  BusySeconds all_to_all_busy(int64_t size, int64_t stride, double bytes, double copies) const;
  const cluster::Cluster& cluster_;
  const cluster::Compute* compute_;    // of the precision
  const cluster::Compute* attention_;  // bf16 where products run in fewer bits
  double peak_ = 0, rate_ = 0, launch_ = 0, bytes_per_second_ = 0, element_bytes_ = 2;
  double ring_bytes_per_second_ = 0, host_bytes_per_second_ = 0;
  int64_t num_ranks_ = 0;
};

}  // namespace piper::cost
