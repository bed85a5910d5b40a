#include <piper/base/units.h>
#include <piper/cost/all_to_all_config.h>

#include <algorithm>
#include <numeric>

namespace piper::cost {
namespace {

using strategy::AllToAll;

constexpr int64_t kLeastChunk = 2048, kChunkFactor = 2;

// Whether tokens are known that could cross once in place of their copies.
bool has_copies(const ExchangeLoad& load) { return load.spread.copies > 1; }

// What may be asked of such a load. In one node nothing crosses.
std::vector<AllToAll> candidates(const ExchangeSite& site, const ExchangeLoad& load,
                                 const FixedAllToAll& fixed) {
  if (fixed.algorithm) return {*fixed.algorithm};
  std::vector<AllToAll> all(strategy::kAllToAlls.begin(), strategy::kAllToAlls.end());
  if (fixed.deduplicates && has_copies(load) && site.levels.size() > 1)
    all.push_back(AllToAll::kHaloDedup);
  return all;
}

PricedAllToAll priced(const ExchangeSite& site, const AllToAllConfig& config,
                      const ExchangeLoad& load) {
  return {config, cost_over_flat(site, config, load), 0};
}

PricedAllToAll in_best_pieces(const ExchangeSite& site, AllToAll algorithm,
                              const ExchangeLoad& load, const std::optional<int64_t>& fixed_chunk) {
  if (fixed_chunk && traits(algorithm).is_cut) return priced(site, {algorithm, *fixed_chunk}, load);
  PricedAllToAll best = priced(site, {algorithm, 0}, load);
  if (!traits(algorithm).is_cut) return best;
  const double largest =
      algorithm == AllToAll::kHaloDedup
          ? load.pair_bytes * site.members() / load.spread.copies  // all tokens of a member
          : load.pair_bytes * site.levels[std::min<size_t>(1, site.levels.size() - 1)].members;
  for (int64_t chunk = kLeastChunk; static_cast<double>(chunk) < largest; chunk *= kChunkFactor)
    if (const PricedAllToAll other = priced(site, {algorithm, chunk}, load);
        other.factor < best.factor)
      best = other;
  return best;
}

}  // namespace

std::string to_text(const AllToAllConfig& config) {
  std::string text = strategy::name(config.algorithm);
  if (config.chunk_bytes > 0)
    text += " in pieces of " + format_bytes(static_cast<double>(config.chunk_bytes));
  return text;
}

double cost_over_flat(const ExchangeSite& site, const AllToAllConfig& config,
                      const ExchangeLoad& load) {
  if (config.algorithm == plain_exchange(site) || config.algorithm == AllToAll::kNodeAware)
    return 1;
  const double flat = configured_seconds(site, {AllToAll::kNodeAware, 0}, load);
  return flat > 0 ? configured_seconds(site, config, load) / flat : 1;
}

double cost_over_flat(const cluster::Cluster& cluster, const Group& group,
                      const AllToAllConfig& config, double pair_bytes, const Routed& routed) {
  if (group.size <= 1 || config.algorithm == AllToAll::kNodeAware) return 1;
  const ExchangeSite site(cluster, group);
  return cost_over_flat(site, config, {pair_bytes, 1, routed.on(site)});
}

double cost_over_flat(const cluster::Cluster& cluster, const Group& group,
                      const AllToAllConfig& config, std::span<const double> to_bytes,
                      const Routed& routed) {
  if (group.size <= 1 || config.algorithm == AllToAll::kNodeAware) return 1;
  const double mean =
      std::accumulate(to_bytes.begin(), to_bytes.end(), 0.0) / static_cast<double>(to_bytes.size());
  const double hot = mean > 0 ? std::ranges::max(to_bytes) / mean : 1;
  const ExchangeSite site(cluster, group);
  return cost_over_flat(site, config, {mean, hot, routed.on(site)});
}

CommTime times_flat(const CommTime& flat, double factor) {
  const double total = factor * flat.total(), transfer = std::min(total, flat.transfer);
  return {.latency = total - transfer, .transfer = transfer};
}

std::vector<PricedAllToAll> priced_all_to_alls(const ExchangeSite& site, const ExchangeLoad& load,
                                               const FixedAllToAll& fixed) {
  std::vector<PricedAllToAll> all;
  for (const AllToAll algorithm : candidates(site, load, fixed)) {
    all.push_back(in_best_pieces(site, algorithm, load, fixed.chunk_bytes));
    all.back().scratch_bytes = scratch_bytes(site, all.back().config, load.pair_bytes, load.spread);
  }
  std::ranges::stable_sort(all, {}, &PricedAllToAll::factor);
  return all;
}

AllToAll plain_exchange(const ExchangeSite& site) {
  return site.levels.size() > 1 ? AllToAll::kNodeAware : AllToAll::kFlat;
}

PricedAllToAll best_all_to_all(const ExchangeSite& site, const ExchangeLoad& load,
                               const FixedAllToAll& fixed, double flat_part) {
  const AllToAll plain = fixed.algorithm || flat_part < 1 ? AllToAll::kFlat : plain_exchange(site);
  PricedAllToAll best{{plain, 0}, flat_part, 0};
  bool found = !fixed.algorithm || *fixed.algorithm == AllToAll::kFlat;
  for (const AllToAll algorithm : candidates(site, load, fixed)) {
    // One message a pair, whatever the order, is never below the flat one.
    if (algorithm == AllToAll::kFlat || (!fixed.algorithm && !traits(algorithm).forwards)) continue;
    const bool has_groups = site.levels.size() > 2;  // without, halo-switch is halo
    if (algorithm == AllToAll::kHaloSwitch && !has_groups && !fixed.algorithm) continue;
    const PricedAllToAll other = in_best_pieces(site, algorithm, load, fixed.chunk_bytes);
    const double most =
        is_plain(best.config.algorithm) ? (1 - kAllToAllTie) * best.factor : best.factor;
    if (found && other.factor >= most) continue;
    best = other;
    found = true;
  }
  best.scratch_bytes = scratch_bytes(site, best.config, load.pair_bytes, load.spread);
  return best;
}

}  // namespace piper::cost
