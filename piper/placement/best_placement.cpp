#include <piper/placement/best_placement.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace piper::placement {
namespace {

constexpr double kBelow = 1 - 1e-12;  // of the best: else the same but for rounding

class Brancher {
 public:
  Brancher(const Slots& slots, std::span<const RankGroup> groups, const RankSlots& known,
           std::span<const int32_t> order, int64_t max_branches)
      : slots_(slots),
        groups_(groups),
        order_(order),
        left_(max_branches),
        best_{known, false},
        least_(least_group_seconds(slots, groups)),
        groups_of_(known.size()),
        node_of_(known.size(), -1),
        seconds_(least_) {
    for (size_t g = 0; g < groups.size(); ++g) {
      best_seconds_ += group_seconds(slots, groups[g], known);
      for (const int32_t rank : groups[g].ranks) groups_of_[static_cast<size_t>(rank)].push_back(g);
    }
    for (const std::vector<int32_t>& unit : slots.unit)
      filled_.emplace_back(static_cast<size_t>(std::ranges::max(unit)) + 1);
    in_unit_.resize(filled_[0].size());
    read_nodes();
    read_shapes();
  }

  BestPlacement search() {
    place(0);
    best_.is_best = left_ > 0;
    return std::move(best_);
  }

 private:
  struct Node {
    std::vector<int32_t> slots, unit;  // by boundary
  };

  void read_nodes() {
    nodes_.resize(filled_[0].size());
    for (int32_t slot = 0; slot < slots_.size(); ++slot) {
      Node& node = nodes_[static_cast<size_t>(slots_.unit[0][static_cast<size_t>(slot)])];
      node.slots.push_back(slot);
      node.unit.clear();
      for (const auto& unit : slots_.unit) node.unit.push_back(unit[static_cast<size_t>(slot)]);
    }
  }

  // Units of equal number are built alike: as many slots, or equal units inside.
  void read_shapes() {
    shape_.resize(filled_.size());
    std::map<std::vector<int32_t>, int32_t> known;
    for (size_t b = 0; b < filled_.size(); ++b) {
      std::vector<std::vector<int32_t>> inside(filled_[b].size());
      if (b == 0) {
        for (size_t n = 0; n < nodes_.size(); ++n)
          inside[n] = {-static_cast<int32_t>(nodes_[n].slots.size())};
      } else {
        std::vector<char> seen(filled_[b - 1].size());
        for (const Node& node : nodes_) {
          const auto inner = static_cast<size_t>(node.unit[b - 1]);
          if (seen[inner]) continue;
          seen[inner] = 1;
          inside[static_cast<size_t>(node.unit[b])].push_back(shape_[b - 1][inner]);
        }
      }
      for (std::vector<int32_t>& parts : inside) {
        std::ranges::sort(parts);
        shape_[b].push_back(
            known.try_emplace(parts, static_cast<int32_t>(known.size())).first->second);
      }
    }
  }

  // Equal for nodes that a symmetry of what is still empty turns into each other.
  std::vector<int32_t> key_of(const Node& node) const {
    std::vector<int32_t> key;
    for (size_t b = filled_.size(); b-- > 0;) {
      const auto unit = static_cast<size_t>(node.unit[b]);
      key.push_back(filled_[b][unit] > 0 ? node.unit[b] : -1 - shape_[b][unit]);
    }
    return key;
  }

  // The cost of a group from those of its members that are placed so far; it never falls when more
  // are placed.
  double placed_seconds(const RankGroup& group) {
    double seconds = group.sent() * slots_.inner_seconds;
    for (size_t b = 0; b < filled_.size(); ++b) {
      int64_t placed = 0, inside = 0, units = 0;
      touched_.clear();
      for (const int32_t rank : group.ranks) {
        const int32_t n = node_of_[static_cast<size_t>(rank)];
        if (n < 0) continue;
        const int32_t unit = nodes_[static_cast<size_t>(n)].unit[b];
        int64_t& here = in_unit_[static_cast<size_t>(unit)];
        units += here == 0;
        inside += 2 * here + 1;  // of squares
        ++here;
        ++placed;
        touched_.push_back(unit);
      }
      for (const int32_t unit : touched_) in_unit_[static_cast<size_t>(unit)] = 0;
      const int64_t crossing = !group.is_ring ? placed * placed - inside : units > 1 ? units : 0;
      seconds += slots_.crossing_seconds[b] * group.bytes * static_cast<double>(crossing);
    }
    return seconds;
  }

  void put(int32_t rank, int32_t node) { change(rank, node, node, 1); }
  void take(int32_t rank, int32_t node) { change(rank, node, -1, -1); }
  void change(int32_t rank, int32_t node, int32_t now, int32_t step) {
    node_of_[static_cast<size_t>(rank)] = now;
    for (size_t b = 0; b < filled_.size(); ++b)
      filled_[b][static_cast<size_t>(nodes_[static_cast<size_t>(node)].unit[b])] += step;
    for (const size_t g : groups_of_[static_cast<size_t>(rank)])
      seconds_[g] = std::max(least_[g], placed_seconds(groups_[g]));
  }
  double bound() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

  struct Choice {
    double bound = 0;
    int32_t node = 0;
  };

  void place(size_t depth) {
    if (depth == order_.size()) return keep();
    const int32_t rank = order_[depth];
    std::vector<Choice> choices;
    std::set<std::vector<int32_t>> seen;
    for (int32_t n = 0; n < static_cast<int32_t>(nodes_.size()); ++n) {
      const Node& node = nodes_[static_cast<size_t>(n)];
      if (filled_[0][static_cast<size_t>(n)] == std::ssize(node.slots)) continue;
      if (!seen.insert(key_of(node)).second) continue;
      if (--left_ <= 0) return;
      put(rank, n);
      choices.push_back({bound(), n});
      take(rank, n);
    }
    std::ranges::stable_sort(choices, {}, &Choice::bound);
    for (const Choice& choice : choices) {
      if (choice.bound >= kBelow * best_seconds_ || left_ <= 0) return;
      put(rank, choice.node);
      place(depth + 1);
      take(rank, choice.node);
    }
  }

  void keep() {
    RankSlots ranks(node_of_.size());
    std::vector<size_t> next(nodes_.size());
    for (size_t rank = 0; rank < node_of_.size(); ++rank) {
      const auto n = static_cast<size_t>(node_of_[rank]);
      ranks[rank] = nodes_[n].slots[next[n]++];
    }
    double seconds = 0;
    for (const RankGroup& group : groups_) seconds += group_seconds(slots_, group, ranks);
    if (seconds >= kBelow * best_seconds_) return;
    best_seconds_ = seconds;
    best_.ranks = std::move(ranks);
  }

  const Slots& slots_;
  std::span<const RankGroup> groups_;
  std::span<const int32_t> order_;
  int64_t left_;
  BestPlacement best_;
  double best_seconds_ = 0;
  std::vector<double> least_;
  std::vector<std::vector<size_t>> groups_of_;  // by rank
  std::vector<int32_t> node_of_;                // by rank
  std::vector<double> seconds_;               // by group, of the members placed; its least at least
  std::vector<std::vector<int32_t>> filled_;  // [boundary][unit]: ranks
  std::vector<int64_t> in_unit_;              // zeros between uses
  std::vector<int32_t> touched_;
  std::vector<Node> nodes_;
  std::vector<std::vector<int32_t>> shape_;  // [boundary][unit]
};

}  // namespace

BestPlacement best_placement(const Slots& slots, std::span<const RankGroup> groups,
                             const RankSlots& known, std::span<const int32_t> order,
                             int64_t max_branches) {
  if (slots.num_boundaries() == 0) return {known, true};
  return Brancher(slots, groups, known, order, max_branches).search();
}

}  // namespace piper::placement
