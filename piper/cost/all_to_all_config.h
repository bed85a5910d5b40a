// Seconds and scratch of one exchange by any algorithm, in closed form: what the search prices
// exchanges other than the flat one with, as a multiple of that one.
//
// The same ports and costs as sim/placement.h gives the simulator of messages: a start-up for every
// message, one latency a way, a member's share of every level that its bytes cross, copies at the
// memory's bandwidth. A stage takes
//
//   max(start-ups, bytes on each level's share, copies that feed it) + latency of the farthest way
//
// and stages that wait for each other add up. D bytes a pair, R members a node, N nodes, M = N - 1,
// n = N R:
//
//   exchange       messages of a member                      what it waits for
//   node-aware, windowed   n-1 of D                          nothing
//   flat           n-1 of D                                  the last NIC of the last node
//   naive          n-1 of D                                  the last NIC, which all reach last
//   pairwise       n-1 of D                                  every round for the one before
//   bruck          ceil(log2 n) of about n D / 2             likewise; rows are packed
//   2d             R-1 of N D inside, M of R D               NICs for all of the inside
//   leader         a leader: M of R^2 D                      gathered before, scattered after
//   halo-printed   M of R D, R-1 of M D inside               inside for all of the NICs
//   halo           the same rows, handed on as they come     the last packet
//   halo-switch    the same over the switch group            likewise
//   three-level    beyond the group, the nodes, inside       each for the one before
//   halo-dedup     tokens, not copies (dedup_all_to_all.h)   likewise; packed, added on return
//
// Over 150 random machines and sizes (plan/exchange_axis_test.cpp) the root mean square from the
// simulator is 1 to 9 %, naive orders 13 %; docs/collectives.md has the worst cases. What
// all_to_all_seconds() means is node-aware order. kFlat's own, rotated by distance, is Piper's; a
// trainer that does not choose its exchange leaves the order to its library, which goes by nodes
// (NCCL). One rank is hot, wherever a load says that some are. A further algorithm: its case in
// configured_seconds and in scratch_bytes. Pure functions, thread-safe.
#pragma once

#include <piper/cost/exchange_time.h>
#include <piper/cost/gradient_reduction_overlap.h>
#include <piper/cost/token_spread.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::cost {

struct AllToAllConfig {
  strategy::AllToAll algorithm = strategy::AllToAll::kFlat;
  int64_t chunk_bytes = 0;  // 0: uncut
  bool operator==(const AllToAllConfig&) const = default;
};
AllToAllConfig all_to_all_of(const strategy::Strategy& strategy);
// "halo in pieces of 64.00 KiB"
std::string to_text(const AllToAllConfig& config);

// How the members of a group lie and how fast they are. Groups whose units hold different numbers
// of members are taken as even.
struct ExchangeSite {
  struct Level {
    double members = 1;          // of the group, in one unit
    double latency_seconds = 0;  // between two that meet here, without start-up
    double seconds_per_byte =
        0;  // of what one member sends out of the level below (level 0: inside the node)
  };
  std::vector<Level> levels;  // nodes, then what tells members apart; the last one holds all
  double members_of_nic = 1;
  double startup_seconds = 0, local_seconds = 0, memory_seconds_per_byte = 0;

  ExchangeSite(const cluster::Cluster& cluster, const Group& group);
  double members() const { return levels.back().members; }
};

// `hot`: bytes for the busiest member over the mean `pair_bytes`, the others alike. `spread`: of
// the tokens whose copies these are; left out, each copy is a token of its own.
struct ExchangeLoad {
  double pair_bytes = 0;
  double hot = 1;
  DedupRatios spread = {};
};

// The layer whose router chose, and the bytes of a token's row: what a spread follows from. Without
// a layer each copy is a token of its own.
struct Routed {
  const model::FeedForward* layer = nullptr;
  double row_bytes = 0;
  DedupRatios on(const ExchangeSite& site) const;
};

double configured_seconds(const ExchangeSite& site, const AllToAllConfig& config,
                          const ExchangeLoad& load);

// Seconds over those of one message a pair, all posted at once, in node-aware order: what
// all_to_all_seconds() and measured curves price. 1 for kNodeAware, and in one node for kFlat.
double cost_over_flat(const ExchangeSite& site, const AllToAllConfig& config,
                      const ExchangeLoad& load);
// The same for a group whose members send to_bytes[j] to member j, or all alike, of tokens that
// `routed` sent out. 1 for groups of one.
double cost_over_flat(const cluster::Cluster& cluster, const Group& group,
                      const AllToAllConfig& config, double pair_bytes, const Routed& routed = {});
double cost_over_flat(const cluster::Cluster& cluster, const Group& group,
                      const AllToAllConfig& config, std::span<const double> to_bytes,
                      const Routed& routed = {});

// The flat exchange's seconds by cost_over_flat(), which is below 1 where an algorithm is faster.
// Bytes that cross are those of the flat one: what is longer is waiting.
CommTime times_flat(const CommTime& flat, double factor);

struct PricedAllToAll {
  AllToAllConfig config;
  double factor = 1;
  double scratch_bytes = 0;
};
// What the user has decided of it.
struct FixedAllToAll {
  std::optional<strategy::AllToAll> algorithm;
  std::optional<int64_t> chunk_bytes;
  bool deduplicates = true;  // else tokens may not travel in place of their copies
};
// Every algorithm that is not excluded, each in its best pieces (powers of two), cheapest first;
// ties in the order of strategy::kAllToAlls, of which the flat one is the first.
std::vector<PricedAllToAll> priced_all_to_alls(const ExchangeSite& site, const ExchangeLoad& load,
                                               const FixedAllToAll& fixed = {});

// One message a pair, all posted at once, without scratch: what exchanges are priced as multiples
// of.
constexpr bool is_plain(strategy::AllToAll a) {
  return a == strategy::AllToAll::kFlat || a == strategy::AllToAll::kNodeAware;
}
// The plain one whose order the price assumes: over several nodes the node-aware one, since rotated
// by distance all members of a node send to one NIC at a time (simulated, up to 1.8 times slower);
// in one node the flat one, where the two are the same.
strategy::AllToAll plain_exchange(const ExchangeSite& site);

// By so much an exchange must be cheaper than the plain one to be chosen: what the closed form may
// be off by.
inline constexpr double kAllToAllTie = 0.1;
// The cheapest, or the plain one where none is cheaper by more than that. `flat_part`: seconds of
// the flat exchange over what the factors multiply; less than 1 where it alone leaves out what
// crosses twice, which makes it the plain one.
PricedAllToAll best_all_to_all(const ExchangeSite& site, const ExchangeLoad& load,
                               const FixedAllToAll& fixed = {}, double flat_part = 1);

// The most that one member needs, with even loads (testing/collective/prove.h counts the same).
double scratch_bytes(const ExchangeSite& site, const AllToAllConfig& config, double pair_bytes,
                     const DedupRatios& spread = {});

}  // namespace piper::cost
