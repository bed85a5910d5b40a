#include <piper/plan/exchange_choice.h>
#include <piper/plan/exchange_pick.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace piper::plan {
namespace {

using cost::AllToAllConfig;
using cost::PricedAllToAll;
using strategy::AllToAll;

// One group's exchange in virtual time: member 0 is the hot one.
class Simulated {
 public:
  Simulated(const cluster::Cluster& cluster, const cost::Group& group,
            const cost::ExchangeLoad& load)
      : load_(load), size_(static_cast<double>(group.size)) {
    sim::Placement placement;
    for (int64_t member = 0; member < group.size; ++member)
      placement.device.push_back(member * group.stride);
    fabric_ = sim::fabric_of(cluster, placement);
    topology_ = sim::topology_of(cluster, placement);
  }
  double seconds(const AllToAllConfig& config) const {
    const double others = std::max(0.0, (size_ - load_.hot) / (size_ - 1));
    const auto bytes = [&](int64_t, int64_t to) {
      return std::llround(load_.pair_bytes * (to == 0 ? load_.hot : others));
    };
    return exchange_seconds(fabric_, topology_, bytes, config.algorithm, config.chunk_bytes);
  }
  // What no exchange of even loads beats.
  double limit_seconds() const {
    const int64_t bytes = std::llround(load_.pair_bytes);
    return sim::exchange_limit(fabric_, [bytes](int64_t, int64_t) { return bytes; }).seconds;
  }

 private:
  cost::ExchangeLoad load_;
  double size_;
  sim::Fabric fabric_;
  collective::Topology topology_;
};

constexpr double kMostMessagePieces = 64;  // of a message

bool is_simulatable(const cost::Group& group, const cost::ExchangeLoad& load,
                    const cost::FixedAllToAll& fixed) {
  return !fixed.algorithm && group.size > 1 && group.size <= kMostSimulatedMembers &&
         load.pair_bytes >= 1;
}

// The pieces that the closed form likes best and those beside them, but none so small that they
// take long to simulate; for a hot rank, whose messages are not like the mean, up to many times as
// long.
std::vector<AllToAllConfig> beside(const AllToAllConfig& config, bool is_hot,
                                   double largest_message) {
  std::vector<AllToAllConfig> all{{config.algorithm, 0}};
  if (config.chunk_bytes == 0) return all;
  int64_t chunk = std::max<int64_t>(1, config.chunk_bytes / 2);
  while (static_cast<double>(chunk) * kMostMessagePieces < largest_message) chunk *= 2;
  for (int i = 0; i < (is_hot ? 7 : 4); ++i, chunk *= 2)
    if (static_cast<double>(chunk) < largest_message) all.push_back({config.algorithm, chunk});
  return all;
}

}  // namespace

AllToAllConfig pick_exchange(const cluster::Cluster& cluster, const cost::Group& group,
                             const cost::ExchangeLoad& load, const cost::FixedAllToAll& fixed,
                             double flat_part) {
  const cost::ExchangeSite site(cluster, group);
  const AllToAllConfig closed = cost::best_all_to_all(site, load, fixed, flat_part).config;
  if (!is_simulatable(group, load, fixed)) return closed;
  // Tokens are not simulated: what wins by leaving out copies wins by far.
  if (closed.algorithm == AllToAll::kHaloDedup) return closed;
  const std::vector<PricedAllToAll> configs = cost::priced_all_to_alls(site, load, fixed);
  double least = flat_part;
  for (const PricedAllToAll& p : configs)
    if (p.config.algorithm != AllToAll::kHaloDedup) least = std::min(least, p.factor);
  const double most = (1 + kNearest) * least;
  const double largest =
      load.pair_bytes * site.levels[std::min<size_t>(1, site.levels.size() - 1)].members * load.hot;
  std::vector<AllToAllConfig> nearest, pieces;
  for (const PricedAllToAll& p : configs) {
    if (cost::is_plain(p.config.algorithm) || p.config.algorithm == AllToAll::kHaloDedup ||
        p.factor > most)
      continue;
    std::vector<AllToAllConfig> all = beside(p.config, load.hot > 1, largest);
    // The closed form's own pieces, or the finest that may be simulated.
    auto first = std::ranges::find(all, p.config);
    if (first == all.end()) first = all.begin() + (all.size() > 1 ? 1 : 0);
    std::rotate(all.begin(), first, first + 1);
    nearest.push_back(all.front());
    pieces.insert(pieces.end(), all.begin() + 1, all.end());
  }
  const AllToAll plain = flat_part < 1 ? AllToAll::kFlat : cost::plain_exchange(site);
  AllToAllConfig best{plain, 0};
  if (nearest.empty()) return best;
  nearest.insert(nearest.end(), pieces.begin(), pieces.end());

  const Simulated simulated(cluster, group, load);
  double best_seconds =
      flat_part * simulated.seconds({cost::plain_exchange(site), 0}) * (1 - kSimulatedTie);
  if (load.hot <= 1 && best_seconds <= simulated.limit_seconds()) return best;
  // The likeliest first: what of a large group is not simulated is what the closed form likes
  // least.
  const auto most_simulated = static_cast<size_t>(kMostSimulatedPairs / (group.size * group.size));
  for (size_t i = 0; i < std::min(nearest.size(), most_simulated); ++i)
    if (const double seconds = simulated.seconds(nearest[i]); seconds < best_seconds) {
      best_seconds = seconds;
      best = nearest[i];
    }
  return best;
}

}  // namespace piper::plan
