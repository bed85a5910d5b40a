#include <piper/base/error.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/dedup_all_to_all.h>
#include <piper/cost/links.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace piper::cost {
namespace {

using strategy::AllToAll;

// Start-up of a message where the cluster states none; as sim/placement.h assumes.
constexpr double kMessageSeconds = 1e-6;

constexpr double kRounding = 1e-9;

double members_in(int64_t unit_devices, const Group& group) {
  return static_cast<double>(std::clamp<int64_t>(unit_devices / group.stride, 1, group.size));
}

// Rows whose distance of n - 1 others has a bit: what a round of Bruck passes on.
int64_t rows_with_bit(int64_t n, int64_t bit) {
  return n / (2 * bit) * bit + std::max<int64_t>(0, n % (2 * bit) - bit);
}

class Closed {
 public:
  Closed(const ExchangeSite& site, const AllToAllConfig& config, const ExchangeLoad& load)
      : s_(site),
        config_(config),
        d_(load.pair_bytes),
        n_(site.members()),
        hot_(std::clamp(load.hot, 1.0, n_)),
        r_(site.levels.front().members),
        nodes_(n_ / r_),
        m_(nodes_ - 1),
        others_(n_ > 1 ? (n_ - hot_) / (n_ - 1) : 1),
        start_(site.startup_seconds) {}

  // The own row is copied beside everything else.
  double seconds() const {
    return n_ <= 1 ? 0 : std::max(travel(), s_.local_seconds + touched(d_));
  }

  double travel() const {
    if (s_.levels.size() == 1 && traits(config_.algorithm).stages) return straight();
    switch (config_.algorithm) {
      case AllToAll::kFlat:
        return rotated();
      case AllToAll::kNodeAware:
      case AllToAll::kWindowed:
        return straight();
      case AllToAll::kNaive:
        return naive();
      case AllToAll::kPairwise:
        return pairwise();
      case AllToAll::kBruck:
        return bruck();
      case AllToAll::kTwoD:
        return two_d();
      case AllToAll::kLeader:
        return leader();
      case AllToAll::kHaloPrinted:
        return halo_printed();
      case AllToAll::kHaloSwitch:
        return halo(switch_level());
      case AllToAll::kHalo:
        return halo(0);
      case AllToAll::kHaloDedup:
        break;  // dedup_all_to_all.h
      case AllToAll::kThreeLevel:
        return three_level();
    }
    PIPER_CHECK(false, "an exchange that is not in the list");
    return 0;
  }

  // Bytes of a member where nodes are even, by the layout that stands above every algorithm.
  double scratch() const {
    if (n_ <= 1 || (s_.levels.size() == 1 && traits(config_.algorithm).stages)) return 0;
    switch (config_.algorithm) {
      case AllToAll::kFlat:
      case AllToAll::kNodeAware:
      case AllToAll::kWindowed:
      case AllToAll::kNaive:
      case AllToAll::kPairwise:
        return 0;
      case AllToAll::kBruck:
        return bruck_scratch();
      case AllToAll::kTwoD:
        return r_ > 1 ? (2 * (r_ - 1) * nodes_ + m_ * r_) * d_ : 0;
      case AllToAll::kLeader:  // from one other node rows come in the order in which they go on
        return r_ > 1 ? (2 * m_ * r_ * r_ + (m_ > 1 ? 2 : 1) * (r_ - 1) * m_ * r_) * d_ : 0;
      case AllToAll::kHaloPrinted:
        return (4 * m_ * r_ + r_) * d_;
      case AllToAll::kHaloSwitch:
        return halo_scratch(switch_level());
      case AllToAll::kHalo:
        return halo_scratch(0);
      case AllToAll::kHaloDedup:
        break;  // dedup_all_to_all.h
      case AllToAll::kThreeLevel:
        return three_level_scratch();
    }
    PIPER_CHECK(false, "an exchange that is not in the list");
    return 0;
  }

 private:
  size_t switch_level() const { return s_.levels.size() > 2 ? 1 : 0; }

  double bruck_scratch() const {
    const auto n = static_cast<int64_t>(n_);
    double staged = 0, arrived = 0;
    for (int64_t bit = 1; bit < n; bit *= 2) {
      const auto rows = static_cast<double>(rows_with_bit(n, bit));
      staged = std::max(staged, rows);
      arrived += rows;
    }
    return (staged + arrived) * d_;
  }

  double halo_scratch(size_t unit) const {
    const double u = level(unit).members, units = n_ / u - 1;
    if (units <= 0 || u == 1) return 0;
    const double chunk =
        config_.chunk_bytes > 0 ? static_cast<double>(config_.chunk_bytes) : u * d_;
    return units * (chunk >= u * d_ ? u : u - 1) * d_;
  }

  double three_level_scratch() const {
    const bool groups = s_.levels.size() > 2;
    const double u = groups ? level(1).members : n_;
    const double units = n_ / u, here = u / r_;
    const double arrived = (units - 1) * u;
    // Packed, and arrived; of one source, or for one member of one other node, they lie right as
    // they are.
    const double passed_on = r_ == 1 && !groups ? 0 : (groups ? 2 : 1) * (here - 1) * units * r_;
    const double handed_on = m_ > 1 ? 2 * (r_ - 1) * m_ : 0;
    return (arrived + passed_on + handed_on) * d_;
  }

  const ExchangeSite::Level& level(size_t l) const { return s_.levels[l]; }
  double inside(double bytes) const { return bytes * level(0).seconds_per_byte; }
  double near_latency() const { return level(0).latency_seconds; }
  double far_latency() const { return s_.levels.back().latency_seconds; }
  double touched(double bytes) const { return 2 * bytes * s_.memory_seconds_per_byte; }
  // The busiest receiver of so many that share a port, over the mean.
  double hottest_of(double members) const { return (hot_ + (members - 1) * others_) / members; }
  // A member's rows for all units but its own of the level below, on its share; `shared_by`:
  // members that take in together what is for any of them.
  double across(size_t l, double shared_by) const {
    const double below = level(l - 1).members;
    const double by = std::max(shared_by, l == 1 ? s_.members_of_nic : below);
    return (n_ - below) * d_ * level(l).seconds_per_byte * hottest_of(by);
  }
  double across_from(size_t first, double shared_by) const {
    double longest = 0;
    for (size_t l = first; l < s_.levels.size(); ++l)
      longest = std::max(longest, across(l, shared_by));
    return longest;
  }
  // One message alone, on a whole NIC.
  double alone(double bytes) const {
    return s_.levels.size() == 1 ? inside(bytes)
                                 : bytes * level(1).seconds_per_byte / s_.members_of_nic;
  }

  // The far ones first.
  double straight() const {
    return std::max({(n_ - 1) * start_ + near_latency() + inside(d_),
                     (n_ - r_) * start_ + far_latency() + alone(d_),
                     start_ + far_latency() + across_from(1, 1),
                     start_ + near_latency() + inside((r_ - 1) * d_ * hot_)});
  }

  // By distance: all R members of a node reach for the first NIC of the next node, then for its
  // second, and so on. While NICs take their turn behind what others still send, nothing is lost;
  // the last NIC of the last node begins when its senders have (n - R - members of a NIC) messages
  // behind them, and takes all R then.
  double rotated() const {
    if (s_.levels.size() == 1) return straight();
    const double last = s_.members_of_nic, share = d_ * level(1).seconds_per_byte;
    return std::max(straight(), start_ + far_latency() + r_ * share +
                                    std::max((n_ - 1 - last) * start_, (n_ - r_ - last) * share));
  }

  // All reach the last NIC last: what is for it comes in when everything else has gone out.
  double naive() const {
    const bool one_node = s_.levels.size() == 1;
    const double last = one_node ? 1 : s_.members_of_nic;
    const double out =
        one_node ? inside((n_ - 2) * d_) : (n_ - r_ - last) * d_ * level(1).seconds_per_byte;
    // As if nobody were hot: who is, and when its turn comes, is not known here.
    const double in = one_node ? inside((n_ - 1) * d_) : (n_ - r_) * d_ * level(1).seconds_per_byte;
    return std::max(straight(),
                    start_ + far_latency() + in + std::max((n_ - 1 - last) * start_, out));
  }

  // A round in which everybody sends `bytes` so far. On its way a message waits for the latency,
  // while those that share its NIC use it; only messages that start near a boundary cross it.
  double round(double distance, double bytes) const {
    const double near = std::min(distance, n_ - distance);
    double latency = near_latency(), own = inside(bytes), shared = near < r_ ? own : 0;
    for (size_t l = 1; l < s_.levels.size(); ++l) {
      const double below = level(l - 1).members, sharing = l == 1 ? s_.members_of_nic : below;
      const double crossing = std::min(1.0, near / below);
      const double all = bytes * level(l).seconds_per_byte;
      latency += (level(l).latency_seconds - level(l - 1).latency_seconds) * crossing;
      own += std::max(0.0, all / sharing - own) * crossing;
      shared = std::max(shared, all * std::min(1.0, near / sharing));
    }
    return std::max(shared, start_ + latency + own);
  }

  double pairwise() const {
    double seconds = 0;
    for (double distance = 1; distance < n_; ++distance) seconds += round(distance, d_);
    return std::max(seconds, straight());
  }

  double bruck() const {
    const auto n = static_cast<int64_t>(n_);
    double seconds = 0, rows = 0;
    for (int64_t bit = 1; bit < n; bit *= 2) {
      rows = static_cast<double>(rows_with_bit(n, bit));
      if (rows > 1) seconds += s_.local_seconds + touched(rows * d_);
      // The later the round, the fewer targets in a message.
      const double for_hot = std::min(1.0, 2 * static_cast<double>(bit) / n_);
      seconds +=
          round(static_cast<double>(bit), rows * d_ * (others_ + (hot_ - others_) * for_hot));
    }
    return seconds + s_.local_seconds + touched(rows * d_);
  }

  // Messages one after another, each packed before it goes.
  double packed(double messages, double bytes, double busy) const {
    return s_.local_seconds + touched(bytes) +
           std::max({messages * start_, start_ + busy, messages * touched(bytes)});
  }

  // Inside the node, by one member to all others: of one other node the rows lie right as they
  // came.
  double handed_out(double bytes, double hot) const {
    const double busy = inside((r_ - 1) * bytes * hot);
    return m_ > 1 ? packed(r_ - 1, bytes, busy) : std::max((r_ - 1) * start_, start_ + busy);
  }

  double two_d() const {
    const double hot_place = hottest_of(nodes_);
    double seconds = 0;
    if (r_ > 1)
      seconds +=
          packed(r_ - 1, nodes_ * d_, inside((r_ - 1) * nodes_ * d_ * hot_place)) + near_latency();
    return seconds + packed(m_, r_ * d_, across_from(1, 1)) + far_latency();
  }

  double leader() const {
    const double row = m_ * r_ * d_;  // of one member for all other nodes
    const double hot_node = hottest_of(r_);
    // The rows for all other nodes lie in two pieces, but at the two ends of the group.
    const double copied = m_ > 1 ? s_.local_seconds + touched(row) : 0;
    double seconds = 0;
    if (r_ > 1) seconds += copied + start_ + inside((r_ - 1) * row) + near_latency();
    double busy = row * r_ * level(1).seconds_per_byte / s_.members_of_nic * hot_node;
    for (size_t l = 2; l < s_.levels.size(); ++l) busy = std::max(busy, across(l, 1));
    seconds += packed(m_, r_ * r_ * d_, busy) + far_latency();
    if (r_ > 1) seconds += handed_out(row, 1) + near_latency();
    return seconds + copied;
  }

  double halo_printed() const {
    double seconds = packed(m_, r_ * d_, across_from(1, r_)) + far_latency();
    if (r_ > 1)
      seconds += packed(r_ - 1, m_ * d_, inside((r_ - 1) * m_ * d_ * hot_)) + near_latency();
    return seconds + s_.local_seconds + touched(m_ * d_);
  }

  double halo(size_t unit) const {
    const double u = level(unit).members, units = n_ / u - 1;
    if (units < 1) return straight();
    const double row = d_ * others_;
    const double chunk =
        config_.chunk_bytes > 0 ? static_cast<double>(config_.chunk_bytes) : u * d_;
    const double fit = row > 0 ? std::floor(chunk / row + kRounding) : u;  // rows in a packet
    const bool whole = fit >= u;
    // Pieces that a row is handed on in; packets of a message.
    const double pieces = fit < 1 ? std::ceil(row / chunk - kRounding) : 1;
    const double rows_together = std::clamp(fit, 1.0, u);
    const double packets = whole     ? 1
                           : fit < 1 ? u * pieces
                                     : std::ceil((u - 1) / rows_together) + 1;
    const double piece = d_ / pieces;
    const double last = whole ? u - 1 : 1;  // rows of the last packet that go on
    const double handed_on = units * (u - 1) * pieces;

    const double beyond = across_from(unit + 1, u);
    double busy = beyond, inner_latency = near_latency();
    if (unit > 0) {  // inside the group, too, most rows go through the NIC
      inner_latency = level(1).latency_seconds;
      const double card = units * u + (units + 1) * (u - r_);
      busy = std::max(busy, card * d_ * level(1).seconds_per_byte * hottest_of(s_.members_of_nic));
    }
    const double inner_busy = inside((r_ - 1) * (units + 1) * d_ * hot_);
    const double first_there =
        start_ + far_latency() + alone(whole ? u * d_ : rows_together * piece);
    const double after = std::max(last * start_, inside(last * piece)) + inner_latency;
    // What came in a packet with others' rows is copied to its place; behind the own row it waits
    // for no start.
    const double there = start_ + beyond + far_latency(),
                 own_copied = s_.local_seconds + touched(d_);
    const double copied =
        whole || fit >= 2
            ? std::max(own_copied, there + (there > own_copied ? s_.local_seconds : 0)) +
                  touched(d_)
            : 0;
    return std::max({there + after, copied, start_ + busy + far_latency() + inner_latency,
                     std::max((units * packets + u - 1) * start_, first_there) +
                         handed_on * start_ + inner_latency,
                     first_there + inner_busy + inner_latency});
  }

  // Phase I's messages start before those of the second stage.
  double three_level() const {
    const bool groups = s_.levels.size() > 2;
    const double u = groups ? level(1).members : n_;
    const double units = n_ / u, here = u / r_;  // groups; nodes of a group
    double seconds = 0;
    if (groups)
      seconds += std::max((units - 1) * start_, start_ + across_from(2, u)) + far_latency();
    else
      seconds += (r_ - 1) * start_;
    const double bytes = units * r_ * d_;
    const double busy = (here - 1) * bytes * level(1).seconds_per_byte * hottest_of(r_);
    if (here > 1)
      seconds +=
          (groups ? packed(here - 1, bytes, busy) : std::max((here - 1) * start_, start_ + busy)) +
          level(1).latency_seconds;
    const double handed = m_ * d_;
    if (r_ == 1) return seconds + s_.local_seconds + touched(handed);
    seconds += handed_out(handed, hot_) + near_latency();
    return m_ > 1 ? seconds + s_.local_seconds + touched(handed) : seconds;
  }

  const ExchangeSite& s_;
  const AllToAllConfig& config_;
  double d_, n_, hot_, r_, nodes_, m_;
  double others_;  // bytes for the others over the mean
  double start_;
};

}  // namespace

AllToAllConfig all_to_all_of(const strategy::Strategy& strategy) {
  return {strategy.all_to_all, strategy.all_to_all_chunk_bytes};
}

ExchangeSite::ExchangeSite(const cluster::Cluster& cluster, const Group& group)
    : local_seconds(cluster.fixed_task_seconds),
      memory_seconds_per_byte(
          cluster.memory_bytes_per_second > 0 ? 1 / cluster.memory_bytes_per_second : 0) {
  double least = INFINITY;
  for (const cluster::Level& l : cluster.levels) least = std::min(least, l.link.latency_seconds);
  const auto stated = cluster.numbers.find("message_seconds");
  startup_seconds =
      std::min(least, stated == cluster.numbers.end() ? kMessageSeconds : stated->second);
  for (size_t l = 0; l < cluster.levels.size(); ++l) {
    const double here = members_in(cluster.devices_of_level(l), group);
    const double rate = 1 / device_bandwidth(cluster, l);
    if (l > 0 && here == levels.back().members) {
      if (here == static_cast<double>(group.size)) break;
      continue;
    }
    levels.push_back({.members = here,
                      .latency_seconds = cluster.levels[l].link.latency_seconds - startup_seconds,
                      .seconds_per_byte = rate});
  }
  if (cluster.levels.size() > 1) members_of_nic = members_in(devices_of_port(cluster, 1), group);
}

DedupRatios Routed::on(const ExchangeSite& site) const {
  if (layer == nullptr || !layer->is_moe()) return {};
  return expected_spread(*layer, site.members(), site.levels.front().members, row_bytes);
}

double configured_seconds(const ExchangeSite& site, const AllToAllConfig& config,
                          const ExchangeLoad& load) {
  if (config.algorithm == AllToAll::kHaloDedup)
    return dedup_seconds(site, config.chunk_bytes, load).mean();
  return Closed(site, config, load).seconds();
}

double scratch_bytes(const ExchangeSite& site, const AllToAllConfig& config, double pair_bytes,
                     const DedupRatios& spread) {
  const ExchangeLoad load{pair_bytes, 1, spread};
  if (config.algorithm == AllToAll::kHaloDedup) return dedup_scratch_bytes(site, load);
  return Closed(site, config, load).scratch();
}

}  // namespace piper::cost
