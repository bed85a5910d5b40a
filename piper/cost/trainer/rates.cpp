#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/host_link.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/rates.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace piper::cost {
namespace {

using strategy::Precision;

// Where nothing was measured.
constexpr double kAttentionEfficiency = 0.55;  // of the peak, flash kernels
constexpr double kAttentionBackward = 0.75;    // of the forward's rate
constexpr double kStreamEfficiency = 0.8;      // of the memory's bandwidth, element-wise kernels

const cluster::Compute* find(const cluster::Cluster& cluster, const char* key) {
  const auto found = cluster.compute.find(key);
  return found == cluster.compute.end() ? nullptr : &found->second;
}

LevelUtilization needs_of(const std::array<double, kMaxLevels>& busy) {
  LevelUtilization needs;
  const double longest = std::ranges::max(busy);
  for (size_t l = 0; l < busy.size() && longest > 0; ++l) needs.part[l] = busy[l] / longest;
  return needs;
}

}  // namespace

Rates::Rates(const cluster::Cluster& cluster, Precision precision) : cluster_(cluster) {
  compute_ = &compute_of(cluster, precision);
  const bool narrow = converts_operands(precision);
  attention_ = narrow && find(cluster, "bf16") != nullptr ? find(cluster, "bf16") : compute_;
  peak_ = compute_->peak_flops_per_second;
  rate_ =
      peak_ * (compute_->gemm_efficiency > 0 ? compute_->gemm_efficiency : kAssumedGemmEfficiency);
  launch_ = cluster.fixed_task_seconds;
  bytes_per_second_ = kStreamEfficiency * cluster.memory_bytes_per_second;
  element_bytes_ = static_cast<double>(element_bytes(precision));
  const double link = cluster.levels.front().link.bytes_per_second;
  ring_bytes_per_second_ = cluster.number("ring_bytes_per_second", link);
  host_bytes_per_second_ = cost::host_bytes_per_second(cluster);
  num_ranks_ = cluster.num_devices();
}

double Rates::product_seconds(double m, double n, double k) const {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const double flops = 2 * m * n * k;
  if (!compute_->gemm.empty()) return flops / compute_->gemm.at({m, n, k});
  const double bytes = (m * n + m * k + n * k) * element_bytes_;
  return std::max(flops / rate_, bytes / bytes_per_second_) + launch_;
}

double Rates::attention_seconds(double flops, double sequence, double head_dim,
                                bool backward) const {
  if (flops <= 0) return 0;
  const cluster::Grid& grid = backward ? attention_->attention_backward : attention_->attention;
  if (!grid.empty()) return flops / grid.at({sequence, head_dim});
  const double rate = kAttentionEfficiency * attention_->peak_flops_per_second;
  return backward ? flops / (kAttentionBackward * rate) : flops / rate;
}

double Rates::pass_seconds(double bytes) const {
  return bytes > 0 ? bytes / bytes_per_second_ + launch_ : 0;
}

Rates Rates::among(int64_t num_ranks) const {
  Rates fewer = *this;
  fewer.num_ranks_ = std::min(num_ranks_, num_ranks);
  return fewer;
}

// Whether each unit may give so many of its nodes as hold whole blocks.
bool Rates::whole_groups_fit(int64_t unit, int64_t block, int64_t num_ranks) const {
  const int64_t whole = std::lcm(cluster_.devices_of_level(0), block);
  return unit / whole * whole * (cluster_.num_devices() / unit) >= num_ranks;
}

// Devices, in whole nodes, that each of the fewest units gives to a block that is larger; 0 where
// such shares are not equal, or units too few.
int64_t Rates::equal_share(int64_t unit, int64_t block, int64_t num_ranks) const {
  const int64_t units = (block + unit - 1) / unit;
  const bool is_equal = block % units == 0 && block / units % cluster_.devices_of_level(0) == 0;
  return units > 1 && is_equal && num_ranks / block * units <= cluster_.num_devices() / unit
             ? block / units
             : 0;
}

// Groups fill blocks of size x stride devices. Where a unit ends inside a block, some of the
// block's groups have members on both sides; of its devices in one unit, w in a row, some group has
// w / stride, and never less than one.
Rates::Worst Rates::worst_of(int64_t size, int64_t stride) const {
  Worst worst;
  worst.inside[0] = 1;
  const int64_t block = size * stride;
  const int64_t end_of_groups = std::max<int64_t>(1, num_ranks_ / block) * block;
  for (size_t l = 0; l + 1 < cluster_.levels.size(); ++l) {
    const int64_t unit = cluster_.devices_of_level(l);
    if (end_of_groups <= unit || unit % block == 0) break;
    if (l > 0 && whole_groups_fit(unit, block, end_of_groups)) break;
    worst.level = l + 1;
    worst.first = -1;
    const int64_t share = l > 0 ? equal_share(unit, block, end_of_groups) : 0;
    int64_t fewest = std::clamp<int64_t>((share > 0 ? share : unit) / stride, 1, size);
    // Looks at the devices begin .. end, which lie within one unit and one block.
    const auto take = [&](int64_t begin, int64_t end) {
      const int64_t members = std::max<int64_t>(1, (end - begin) / stride);
      if (members > fewest || (members == fewest && worst.first >= 0)) return;
      fewest = members;
      worst.first = begin / block * block + (end - begin < stride ? begin : end) % block % stride;
    };
    // Blocks that begin with a unit have seen all that there is to see.
    const int64_t period = share > 0 || block % unit == 0 ? 0 : std::lcm(unit, block);
    for (int64_t end = unit; end < std::min(end_of_groups, period); end += unit) {
      const int64_t begin = end / block * block;
      if (begin == end) continue;
      take(std::max(begin, end - unit), end);
      take(end, std::min(begin + block, end + unit));
    }
    worst.first = std::max<int64_t>(0, worst.first);
    worst.inside[l + 1] = static_cast<double>(fewest);
  }
  return worst;
}

const char* Rates::link_of(int64_t size, int64_t stride) const {
  return cluster_.levels[worst_of(size, stride).level].name.c_str();
}

double Rates::step_seconds(size_t level) const {
  return level == 0 ? cluster_.number("node_ring_step_seconds", kNodeStepSeconds)
                    : cluster_.number("ring_step_seconds", kOuterStepSeconds);
}

Rates::BusySeconds Rates::ring_busy(int64_t size, int64_t stride, double bytes) const {
  BusySeconds busy{};
  const auto n = static_cast<double>(size);
  const double wire = bytes * (n - 1) / n;
  busy[0] = wire / ring_bytes_per_second_;
  const Worst worst = worst_of(size, stride);
  // Members that one unit below this level holds speak through its NICs together.
  for (size_t l = 1; l <= worst.level; ++l)
    busy[l] = wire / (device_bandwidth(cluster_, l) * worst.inside[l]);
  return busy;
}

CommTime Rates::all_gather(int64_t size, int64_t stride, double bytes) const {
  if (size <= 1 || bytes <= 0) return {};
  const size_t level = worst_of(size, stride).level;
  return {.latency = cluster_.levels[level].link.latency_seconds +
                     static_cast<double>(size - 1) * step_seconds(level),
          .transfer = std::ranges::max(ring_busy(size, stride, bytes))};
}

Rates::BusySeconds Rates::all_to_all_busy(int64_t size, int64_t stride, double bytes,
                                          double copies) const {
  BusySeconds busy{};
  const auto n = static_cast<double>(size);
  const Worst worst = worst_of(size, stride);
  for (size_t l = 0; l <= worst.level; ++l) {
    const double inside = worst.inside[l];
    double crossing = bytes * (n - inside) / n;
    if (l > 0 && copies > 1) {
      // Expected distinct units of this kind among the k choices of a row, one's own left out.
      const double units = n / inside;
      const double distinct = units * (1 - std::pow(1 - 1 / units, copies));
      crossing = std::min(crossing, bytes / copies * distinct * (units - 1) / units);
    }
    busy[l] = crossing / device_bandwidth(cluster_, l);
  }
  return busy;
}

CommTime Rates::all_to_all(int64_t size, int64_t stride, double bytes, double copies) const {
  if (size <= 1 || bytes <= 0) return {};
  return {.latency = cluster_.levels[worst_of(size, stride).level].link.latency_seconds,
          .transfer = std::ranges::max(all_to_all_busy(size, stride, bytes, copies))};
}

CommTime Rates::all_to_all(int64_t size, int64_t stride, double bytes,
                           const strategy::TokenChunk& distances) const {
  const int64_t first = std::max<int64_t>(1, distances.first);  // the member itself is at 0
  const int64_t end = distances.first + distances.count;
  if (size <= 1 || bytes <= 0 || first >= end) return {};
  const Worst worst = worst_of(size, stride);
  CommTime moves{.latency = cluster_.levels[worst.level].link.latency_seconds};
  for (size_t l = 0; l <= worst.level; ++l) {
    // A member and its peer d further on the ring may lie in one unit, either way round.
    const double inside = worst.inside[l];
    double leaving = 0;  // peers, of a member in the mean
    for (int64_t d = first; d < end; ++d)
      leaving += 1 - (std::max(0.0, inside - static_cast<double>(d)) +
                      std::max(0.0, inside - static_cast<double>(size - d))) /
                         inside;
    moves.transfer = std::max(moves.transfer, bytes / static_cast<double>(size) * leaving /
                                                  device_bandwidth(cluster_, l));
  }
  return moves;
}

double Rates::exchange_seconds(int64_t size, int64_t stride, const AllToAllConfig& config,
                               const ExchangeLoad& load, const Routed& routed, double flat) const {
  if (size <= 1 || flat <= 0) return 0;
  const ExchangeSite site(cluster_,
                          {.first = worst_of(size, stride).first, .stride = stride, .size = size});
  const ExchangeLoad full{load.pair_bytes, load.hot, routed.on(site)};
  const double flat_all_to_all =
      configured_seconds(site, {strategy::AllToAll::kNodeAware, 0}, full);
  return configured_seconds(site, config, full) * std::min(1.0, flat / flat_all_to_all);
}

double Rates::over_node_aware(int64_t size, int64_t stride, const AllToAllConfig& config,
                              const ExchangeLoad& load) const {
  if (size <= 1) return 1;
  return cost_over_flat(
      ExchangeSite(cluster_,
                   {.first = worst_of(size, stride).first, .stride = stride, .size = size}),
      config, load);
}

double Rates::exchange_scratch(int64_t size, int64_t stride, const AllToAllConfig& config,
                               double pair_bytes, const Routed& routed) const {
  if (size <= 1) return 0;
  const ExchangeSite site(cluster_,
                          {.first = worst_of(size, stride).first, .stride = stride, .size = size});
  return scratch_bytes(site, config, pair_bytes, routed.on(site));
}

// Blocks of a stage follow each other at equal distances; a block and the same one of the other
// stage lie in one unit where none of its members' ways meets the end of a unit.
size_t Rates::level_between(const strategy::RankLayout& layout, int64_t stage,
                            int64_t other) const {
  const int64_t block = layout.num_together(), way = std::abs(stage - other) * block;
  const int64_t num_blocks = layout.num_members() / block;
  size_t level = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t first = std::min(stage, other) * block + b * layout.distance_of_blocks();
    const auto crosses = [&](size_t l) {
      const int64_t unit = cluster_.devices_of_level(l);
      return (first + block - 1 + way) / unit > first / unit;
    };
    while (level + 1 < cluster_.levels.size() && crosses(level)) ++level;
    if (level + 1 == cluster_.levels.size()) break;
  }
  return level;
}

CommTime Rates::message(size_t level, double bytes) const {
  if (bytes <= 0) return {};
  return {.latency = cluster_.levels[level].link.latency_seconds,
          .transfer = bytes / device_bandwidth(cluster_, level)};
}

LevelUtilization Rates::ring_needs(int64_t size, int64_t stride) const {
  return needs_of(ring_busy(size, stride, 1));
}

LevelUtilization Rates::all_to_all_needs(int64_t size, int64_t stride, double bytes, double copies,
                                         double transfer) const {
  LevelUtilization needs;
  if (size <= 1 || transfer <= 0) return needs;
  const BusySeconds busy = all_to_all_busy(size, stride, bytes, copies);
  for (size_t l = 0; l < busy.size(); ++l) needs.part[l] = std::min(1.0, busy[l] / transfer);
  return needs;
}

// It crosses the levels below its own too, above the innermost.
LevelUtilization Rates::message_needs(size_t level) const {
  BusySeconds busy{};
  const double own = 1 / device_bandwidth(cluster_, level);
  for (size_t l = std::min<size_t>(level, 1); l <= level; ++l)
    busy[l] = std::min(own, 1 / device_bandwidth(cluster_, l));
  return needs_of(busy);
}

}  // namespace piper::cost
