#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/placement/choose_nodes.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace piper::placement {
namespace {

using Nodes = std::vector<int32_t>;

constexpr int64_t kMostWays = 300;       // ways to draw from innermost units that are all priced
constexpr int64_t kMostExchanges = 400;  // of the search from the best candidate
constexpr double kBetter = 1 - 1e-9;

// Free nodes that are alike: of one innermost unit and size.
struct Pool {
  Nodes nodes;
  std::vector<int64_t> path;  // units around them, innermost first
};

class Chooser {
 public:
  Chooser(const cluster::Allocation& allocation, int64_t count, std::span<const RankGroup> groups,
          int32_t num_ranks)
      : allocation_(allocation), count_(count), groups_(groups), num_ranks_(num_ranks) {
    const cluster::Cluster& machine = allocation.machine;
    std::map<std::pair<std::vector<int64_t>, int64_t>, size_t> known;
    for (size_t n = 0; n < allocation.nodes.size(); ++n) {
      const cluster::AllocatedNode& node = allocation.nodes[n];
      std::vector<int64_t> path;
      for (size_t level = 1; level < machine.levels.size(); ++level)
        path.push_back(node.first_device / machine.devices_of_level(level));
      const auto [found, is_new] = known.try_emplace({path, node.num_slots}, pools_.size());
      if (is_new) pools_.push_back({{}, path});
      pools_[found->second].nodes.push_back(static_cast<int32_t>(n));
    }
  }

  NodeChoice choose() {
    Nodes first(static_cast<size_t>(count_));
    std::iota(first.begin(), first.end(), 0);
    NodeChoice result{.nodes = {}, .seconds = INFINITY, .first_seconds = price(first).seconds};
    result.first_units = units_of(allocation_, first);
    keep(first, result);
    if (all_ways(result)) {
      result.is_best = all_proven_;
    } else {
      std::vector<int64_t> multiples{1};
      for (int64_t m = 2; m <= count_; m += m < 4 ? 1 : m < 8 ? 2 : m) multiples.push_back(m);
      for (const int64_t multiple : multiples) keep(gathered(multiple), result);
      exchange(result);
    }
    if (result.nodes.empty())
      throw InvalidInput(fmt::format(
          "no {} of the free nodes found that take {} ranks; allowed: a larger --count, or a "
          "smaller strategy",
          count_, num_ranks_));
    result.num_units = units_of(allocation_, result.nodes);
    return result;
  }

 private:
  struct Price {
    double seconds = INFINITY;  // too few slots
    bool is_best = true;
  };
  Price price(const Nodes& nodes) const {
    const Slots slots = slots_of(allocation_, nodes);
    if (slots.size() < num_ranks_) return {};
    const Placing placing = place_ranks(slots, groups_, num_ranks_, kQuickPlacing);
    return {placing.seconds, placing.is_best};
  }

  // Cheaper; or as cheap in fewer units, the innermost first.
  void keep(Nodes nodes, NodeChoice& result) {
    std::ranges::sort(nodes);
    if (std::ssize(nodes) != count_ || !seen_.insert(nodes).second) return;
    const Price priced = price(nodes);
    all_proven_ &= priced.is_best;
    if (priced.seconds == INFINITY) return;
    const bool cheaper = priced.seconds < kBetter * result.seconds;
    const bool same = !cheaper && kBetter * priced.seconds <= result.seconds;
    if (!cheaper && !(same && units_of(allocation_, nodes) < units_of(allocation_, result.nodes)))
      return;
    result.seconds = std::min(priced.seconds, result.seconds);
    result.nodes = std::move(nodes);
  }

  Nodes drawn(const std::vector<int64_t>& from_pool) const {
    Nodes nodes;
    for (size_t p = 0; p < pools_.size(); ++p)
      nodes.insert(nodes.end(), pools_[p].nodes.begin(), pools_[p].nodes.begin() + from_pool[p]);
    return nodes;
  }

  // False when they are too many.
  bool all_ways(NodeChoice& result) {
    std::vector<int64_t> ways(static_cast<size_t>(count_) + 1);
    ways[0] = 1;
    for (const Pool& pool : pools_) {
      std::vector<int64_t> next(ways.size());
      for (int64_t taken = 0; taken <= count_; ++taken)
        for (int64_t here = 0; here <= std::min<int64_t>(std::ssize(pool.nodes), taken); ++here)
          next[static_cast<size_t>(taken)] =
              std::min(kMostWays + 1,
                       next[static_cast<size_t>(taken)] + ways[static_cast<size_t>(taken - here)]);
      ways = std::move(next);
    }
    if (ways.back() > kMostWays || num_ranks_ > 128) return false;
    std::vector<int64_t> from_pool(pools_.size());
    draw(0, count_, from_pool, result);
    return true;
  }

  void draw(size_t pool, int64_t left, std::vector<int64_t>& from_pool, NodeChoice& result) {
    if (pool == pools_.size()) {
      if (left == 0) keep(drawn(from_pool), result);
      return;
    }
    const auto most = std::min<int64_t>(left, std::ssize(pools_[pool].nodes));
    for (int64_t here = most; here >= 0; --here) {
      from_pool[pool] = here;
      draw(pool + 1, left - here, from_pool, result);
    }
    from_pool[pool] = 0;
  }

  // The fewest units, from the outside in, taking multiples from the innermost ones as long as that
  // is enough.
  Nodes gathered(int64_t multiple) const {
    std::vector<size_t> all(pools_.size());
    std::iota(all.begin(), all.end(), 0);
    Nodes nodes;
    std::vector<int64_t> left;
    for (const Pool& pool : pools_) left.push_back(std::ssize(pool.nodes));
    gather(allocation_.machine.levels.size() - 1, all, count_, multiple, left, nodes);
    if (std::ssize(nodes) < count_)
      gather(allocation_.machine.levels.size() - 1, all, count_ - std::ssize(nodes), 1, left,
             nodes);
    return nodes;
  }

  // Takes up to `wanted` nodes from pools that lie in one unit of machine level `level`.
  void gather(size_t level, const std::vector<size_t>& pools, int64_t wanted, int64_t multiple,
              std::vector<int64_t>& left, Nodes& nodes) const {
    if (level == 0) {
      for (const size_t p : pools) {
        const int64_t here = std::min(wanted, left[p]) / multiple * multiple;
        const auto begin = pools_[p].nodes.end() - left[p];
        nodes.insert(nodes.end(), begin, begin + here);
        left[p] -= here;
        wanted -= here;
      }
      return;
    }
    std::map<int64_t, std::vector<size_t>> units;
    for (const size_t p : pools)
      units[level == 1 ? static_cast<int64_t>(p) : pools_[p].path[level - 2]].push_back(p);
    const auto room = [&](const std::vector<size_t>& unit) {
      int64_t sum = 0;
      for (const size_t p : unit) sum += left[p] / multiple * multiple;
      return sum;
    };
    while (wanted > 0 && !units.empty()) {
      // The smallest that is enough, else the largest.
      auto best = units.begin();
      for (auto it = units.begin(); it != units.end(); ++it) {
        const int64_t a = room(it->second), b = room(best->second);
        if ((a >= wanted) != (b >= wanted) ? a >= wanted : a >= wanted ? a < b : a > b) best = it;
      }
      const auto before = std::ssize(nodes);
      gather(level - 1, best->second, wanted, multiple, left, nodes);
      wanted -= std::ssize(nodes) - before;
      units.erase(best);
    }
  }

  // One node for a free one of another pool.
  void exchange(NodeChoice& result) {
    int64_t tried = 0;
    for (bool again = !result.nodes.empty(); again;) {
      again = false;
      std::vector<int64_t> taken;
      for (const Pool& pool : pools_)
        taken.push_back(std::ranges::count_if(
            pool.nodes, [&](int32_t n) { return std::ranges::binary_search(result.nodes, n); }));
      for (size_t from = 0; from < pools_.size() && !again; ++from)
        for (size_t to = 0; to < pools_.size() && !again; ++to) {
          if (from == to || taken[from] == 0 || taken[to] == 0 ||
              taken[to] == std::ssize(pools_[to].nodes))
            continue;
          if (++tried > kMostExchanges) return;
          std::vector<int64_t> other = taken;
          --other[from];
          ++other[to];
          const double before = result.seconds;
          keep(drawn(other), result);
          again = result.seconds < kBetter * before;
        }
    }
  }

  const cluster::Allocation& allocation_;
  int64_t count_;
  std::span<const RankGroup> groups_;
  int32_t num_ranks_;
  std::vector<Pool> pools_;
  std::set<Nodes> seen_;
  bool all_proven_ = true;
};

}  // namespace

std::vector<int64_t> units_of(const cluster::Allocation& allocation,
                              std::span<const int32_t> nodes) {
  std::vector<int64_t> counts;
  const cluster::Cluster& machine = allocation.machine;
  for (size_t level = 1; level < machine.levels.size(); ++level) {
    std::set<int64_t> units;
    for (const int32_t n : nodes)
      units.insert(allocation.nodes[static_cast<size_t>(n)].first_device /
                   machine.devices_of_level(level));
    counts.push_back(std::ssize(units));
  }
  return counts;
}

NodeChoice choose_nodes(const cluster::Allocation& allocation, int64_t count,
                        std::span<const RankGroup> groups, int32_t num_ranks) {
  const auto free = std::ssize(allocation.nodes);
  if (count < 1 || count > free)
    throw InvalidInput(fmt::format("--count is {}; allowed: 1 to {}, the free nodes", count, free));
  return Chooser(allocation, count, groups, num_ranks).choose();
}

}  // namespace piper::placement
