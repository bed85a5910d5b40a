#include <piper/placement/placement_search.h>

#include <algorithm>

namespace piper::placement {
namespace {

constexpr size_t kCounted = 12;      // members from which on a group's counts are kept
constexpr double kLeastGain = 1e-9;  // of a group's seconds: below that sums are rounding

double hops(int64_t units) { return units > 1 ? static_cast<double>(units) : 0; }

}  // namespace

PlacementSearch::PlacementSearch(const Slots& slots, std::span<const RankGroup> groups,
                                 RankSlots placement)
    : slots_(slots),
      groups_(groups),
      slot_of_(std::move(placement)),
      rank_at_(static_cast<size_t>(slots.size()), -1),
      groups_of_(slot_of_.size()),
      least_(least_group_seconds(slots, groups)) {
  for (size_t rank = 0; rank < slot_of_.size(); ++rank)
    rank_at_[static_cast<size_t>(slot_of_[rank])] = static_cast<int32_t>(rank);
  int64_t units = 0;
  for (const std::vector<int32_t>& unit : slots.unit) {
    first_unit_.push_back(units);
    units += std::ranges::max(unit) + 1;
  }
  if (!slots.unit.empty()) {
    slots_of_node_.resize(static_cast<size_t>(std::ranges::max(slots.unit[0])) + 1);
    for (int32_t slot = 0; slot < slots.size(); ++slot)
      slots_of_node_[static_cast<size_t>(slots.unit[0][static_cast<size_t>(slot)])].push_back(slot);
  }
  num_units_.resize(groups.size() * slots.num_boundaries());
  int64_t next = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const bool is_large = groups[g].ranks.size() >= kCounted;
    first_count_.push_back(is_large ? next : -1);
    if (is_large) next += units;
  }
  counts_.resize(static_cast<size_t>(next));
  for (size_t g = 0; g < groups.size(); ++g)
    for (const int32_t rank : groups[g].ranks) {
      groups_of_[static_cast<size_t>(rank)].push_back(static_cast<int32_t>(g));
      if (!is_counted(g)) continue;
      const auto slot = static_cast<size_t>(slot_of_[static_cast<size_t>(rank)]);
      for (size_t b = 0; b < slots.num_boundaries(); ++b)
        if (counted(g, b, slots.unit[b][slot])++ == 0) ++num_units_[g * slots.num_boundaries() + b];
    }
}

int32_t& PlacementSearch::counted(size_t group, size_t boundary, int32_t unit) {
  return counts_[static_cast<size_t>(first_count_[group] + first_unit_[boundary] + unit)];
}

int64_t PlacementSearch::count(size_t group, size_t boundary, int32_t unit) const {
  if (is_counted(group))
    return counts_[static_cast<size_t>(first_count_[group] + first_unit_[boundary] + unit)];
  int64_t n = 0;
  for (const int32_t rank : groups_[group].ranks)
    n += slots_.unit[boundary][static_cast<size_t>(slot_of_[static_cast<size_t>(rank)])] == unit;
  return n;
}

int64_t PlacementSearch::num_units(size_t group, size_t boundary) const {
  if (is_counted(group)) return num_units_[group * slots_.num_boundaries() + boundary];
  std::array<int32_t, kCounted> units{};
  size_t n = 0;
  for (const int32_t rank : groups_[group].ranks) {
    const int32_t unit =
        slots_.unit[boundary][static_cast<size_t>(slot_of_[static_cast<size_t>(rank)])];
    if (std::find(units.begin(), units.begin() + n, unit) == units.begin() + n) units[n++] = unit;
  }
  return static_cast<int64_t>(n);
}

double PlacementSearch::gain_of_move(int32_t rank, int32_t from, int32_t to, int32_t other) const {
  double gain = 0;
  for (const int32_t index : groups_of_[static_cast<size_t>(rank)]) {
    const auto g = static_cast<size_t>(index);
    const RankGroup& group = groups_[g];
    // Two members of a group change places: nothing changes for it.
    if (other >= 0 && std::ranges::binary_search(group.ranks, other)) continue;
    for (size_t b = 0; b < slots_.num_boundaries(); ++b) {
      const int32_t here = slots_.unit[b][static_cast<size_t>(from)];
      const int32_t there = slots_.unit[b][static_cast<size_t>(to)];
      if (here == there) break;  // and so are all further out
      const int64_t in_here = count(g, b, here), in_there = count(g, b, there);
      double fewer = 0;  // messages, or hops
      if (group.is_ring) {
        const int64_t units = num_units(g, b);
        fewer = hops(units) - hops(units - (in_here == 1) + (in_there == 0));
      } else {
        fewer = 2 * static_cast<double>(in_there - in_here + 1);
      }
      gain += fewer * group.bytes * slots_.crossing_seconds[b];
    }
  }
  return gain;
}

double PlacementSearch::gain(int32_t slot_a, int32_t slot_b) const {
  const int32_t a = rank_at_[static_cast<size_t>(slot_a)];
  const int32_t b = rank_at_[static_cast<size_t>(slot_b)];
  return (a < 0 ? 0 : gain_of_move(a, slot_a, slot_b, b)) +
         (b < 0 ? 0 : gain_of_move(b, slot_b, slot_a, a));
}

void PlacementSearch::move(int32_t rank, int32_t from, int32_t to) {
  slot_of_[static_cast<size_t>(rank)] = to;
  for (const int32_t index : groups_of_[static_cast<size_t>(rank)]) {
    const auto g = static_cast<size_t>(index);
    if (!is_counted(g)) continue;
    for (size_t b = 0; b < slots_.num_boundaries(); ++b) {
      int32_t& units = num_units_[g * slots_.num_boundaries() + b];
      if (--counted(g, b, slots_.unit[b][static_cast<size_t>(from)]) == 0) --units;
      if (counted(g, b, slots_.unit[b][static_cast<size_t>(to)])++ == 0) ++units;
    }
  }
}

void PlacementSearch::swap(int32_t slot_a, int32_t slot_b) {
  int32_t& a = rank_at_[static_cast<size_t>(slot_a)];
  int32_t& b = rank_at_[static_cast<size_t>(slot_b)];
  if (a >= 0) move(a, slot_a, slot_b);
  if (b >= 0) move(b, slot_b, slot_a);
  std::swap(a, b);
}

bool PlacementSearch::could_gain(int32_t rank) const {
  return std::ranges::any_of(groups_of_[static_cast<size_t>(rank)], [&](int32_t index) {
    const auto g = static_cast<size_t>(index);
    return group_seconds(slots_, groups_[g], slot_of_) > least_[g] * (1 + kLeastGain);
  });
}

bool PlacementSearch::improve_rank(int32_t slot, int64_t& left) {
  const int32_t rank = rank_at_[static_cast<size_t>(slot)];
  if (rank < 0 || !could_gain(rank)) return false;
  double scale = 0;
  for (const int32_t g : groups_of_[static_cast<size_t>(rank)])
    scale += groups_[static_cast<size_t>(g)].bytes * slots_.crossing_seconds.back();
  double best_gain = kLeastGain * scale;
  int32_t best = -1;
  int32_t last_empty_node = -1;  // all empty slots of a node are alike
  for (int32_t other = 0; other < slots_.size() && left > 0; ++other) {
    const int32_t node = slots_.unit[0][static_cast<size_t>(other)];
    if (node == slots_.unit[0][static_cast<size_t>(slot)]) continue;
    if (rank_at_[static_cast<size_t>(other)] < 0) {
      if (node == last_empty_node) continue;
      last_empty_node = node;
    }
    --left;
    if (const double g = gain(slot, other); g > best_gain) {
      best_gain = g;
      best = other;
    }
  }
  if (best < 0) return false;
  swap(slot, best);
  return true;
}

double PlacementSearch::swap_nodes(std::span<const int32_t> a, std::span<const int32_t> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += gain(a[i], b[i]);
    swap(a[i], b[i]);
  }
  return sum;
}

bool PlacementSearch::improve_nodes(int64_t& left) {
  bool any = false;
  for (size_t i = 0; i < slots_of_node_.size(); ++i) {
    const std::vector<int32_t>& a = slots_of_node_[i];
    const bool could = std::ranges::any_of(a, [&](int32_t slot) {
      const int32_t rank = rank_at_[static_cast<size_t>(slot)];
      return rank >= 0 && could_gain(rank);
    });
    for (size_t j = 0; could && j < slots_of_node_.size() && left > 0; ++j) {
      const std::vector<int32_t>& b = slots_of_node_[j];
      if (i == j || a.size() != b.size()) continue;
      left -= static_cast<int64_t>(a.size());
      double scale = 0;
      for (const int32_t slot : a)
        if (const int32_t rank = rank_at_[static_cast<size_t>(slot)]; rank >= 0)
          for (const int32_t g : groups_of_[static_cast<size_t>(rank)])
            scale += groups_[static_cast<size_t>(g)].bytes * slots_.crossing_seconds.back();
      if (swap_nodes(a, b) > kLeastGain * scale)
        any = true;
      else
        swap_nodes(a, b);
    }
  }
  return any;
}

int64_t PlacementSearch::improve(int64_t max_swaps) {
  int64_t left = max_swaps;
  if (slots_.num_boundaries() == 0) return 0;
  for (bool again = true; again && left > 0;) {
    again = improve_nodes(left);
    for (int32_t slot = 0; slot < slots_.size() && left > 0; ++slot)
      again |= improve_rank(slot, left);
  }
  return max_swaps - left;
}

}  // namespace piper::placement
