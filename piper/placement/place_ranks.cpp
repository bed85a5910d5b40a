#include <piper/base/error.h>
#include <piper/placement/best_placement.h>
#include <piper/placement/pack_ranks.h>
#include <piper/placement/place_ranks.h>
#include <piper/placement/placement_search.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace piper::placement {
namespace {

constexpr int32_t kMostBranched = 24;  // ranks: step 3 hardly ever ends with more
constexpr int kShakes = 24;
constexpr double kSame = 1e-9;

double sum_of(std::span<const double> seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

class Placer {
 public:
  Placer(const Slots& slots, std::span<const RankGroup> groups, int32_t num_ranks,
         const PlaceOptions& options)
      : slots_(slots), groups_(groups), num_ranks_(num_ranks), options_(options) {}

  Placing place() {
    RankSlots given(static_cast<size_t>(num_ranks_));
    std::iota(given.begin(), given.end(), 0);
    Placing result{.ranks = given,
                   .seconds = seconds(given),
                   .given_seconds = seconds(given),
                   .random_seconds = random_seconds(),
                   .least_seconds = sum_of(least_group_seconds(slots_, groups_)) / num_ranks_};
    const auto blocks = rank_blocks(groups_, num_ranks_);
    std::vector<RankSlots> starts;
    for (const PackRule rule : kPackRules) starts.push_back(pack_ranks(slots_, blocks, rule));
    starts.push_back(given);
    for (const RankSlots& start : starts) keep(start, result);
    const auto is_least = [&] { return result.seconds <= result.least_seconds * (1 + kSame); };
    int64_t left = options_.max_swaps;
    std::ranges::stable_sort(starts, {}, [&](const RankSlots& s) { return seconds(s); });
    for (size_t i = 0; i < starts.size() && left > 0 && !is_least(); ++i) {
      if (i > 0 && starts[i] == starts[i - 1]) continue;
      PlacementSearch search(slots_, groups_, starts[i]);
      // Half of what is left, so that a long search does not keep the others from theirs.
      left -= search.improve(std::max<int64_t>(left / 2, 1));
      keep(search.placement(), result);
    }
    if (!is_least()) shake(left, result);
    result.is_best = is_least();
    if (!result.is_best && num_ranks_ <= kMostBranched && options_.max_branches > 0)
      branch(blocks, result);
    return result;
  }

 private:
  double seconds(const RankSlots& placement) const {
    double sum = 0;
    for (const RankGroup& group : groups_) sum += group_seconds(slots_, group, placement);
    return sum / num_ranks_;
  }

  // What is better by more than rounding.
  void keep(const RankSlots& placement, Placing& result) const {
    const double now = seconds(placement);
    if (now >= result.seconds * (1 - kSame)) return;
    result.ranks = placement;
    result.seconds = now;
  }

  // From the best so far with some slots' contents swapped at random.
  void shake(int64_t left, Placing& result) const {
    std::mt19937_64 random(7);
    const auto any_slot = [&] {
      return static_cast<int32_t>(random() % static_cast<uint64_t>(slots_.size()));
    };
    for (int round = 0; round < kShakes && left > 0; ++round) {
      PlacementSearch search(slots_, groups_, result.ranks);
      for (int32_t i = 0; i < 2 + num_ranks_ / 4; ++i) {
        const int32_t a = any_slot(), b = any_slot();
        if (a != b) search.swap(a, b);
      }
      left -= std::max<int64_t>(search.improve(left), 1);
      keep(search.placement(), result);
    }
  }

  void branch(const std::vector<std::vector<int32_t>>& blocks, Placing& result) const {
    std::vector<int32_t> order(static_cast<size_t>(num_ranks_));
    std::iota(order.begin(), order.end(), 0);
    for (const std::vector<int32_t>& level : blocks)
      std::ranges::stable_sort(order, {}, [&](int32_t r) { return level[static_cast<size_t>(r)]; });
    const BestPlacement best =
        best_placement(slots_, groups_, result.ranks, order, options_.max_branches);
    keep(best.ranks, result);
    result.is_best = best.is_best;
  }

  double random_seconds() const {
    std::vector<std::vector<int32_t>> nodes;
    for (int32_t slot = 0; slot < slots_.size(); ++slot) {
      const auto i = static_cast<size_t>(slot);
      if (slot == 0 || slots_.node[i] != slots_.node[i - 1]) nodes.emplace_back();
      nodes.back().push_back(slot);
    }
    std::mt19937_64 random(20261122);
    std::vector<double> all;
    for (int draw = 0; draw < kRandomOrders; ++draw) {
      // Not std::shuffle: its order is the library's own.
      for (size_t i = 0; i < nodes.size(); ++i)
        std::swap(nodes[i], nodes[i + random() % (nodes.size() - i)]);
      RankSlots placement;
      for (const std::vector<int32_t>& node : nodes)
        placement.insert(placement.end(), node.begin(), node.end());
      placement.resize(static_cast<size_t>(num_ranks_));
      all.push_back(seconds(placement));
    }
    std::ranges::sort(all);
    return all[all.size() / 2];
  }

  const Slots& slots_;
  std::span<const RankGroup> groups_;
  int32_t num_ranks_;
  const PlaceOptions& options_;
};

}  // namespace

Placing place_ranks(const Slots& slots, std::span<const RankGroup> groups, int32_t num_ranks,
                    const PlaceOptions& options) {
  PIPER_CHECK(num_ranks >= 1 && num_ranks <= slots.size());
  return Placer(slots, groups, num_ranks, options).place();
}

}  // namespace piper::placement
