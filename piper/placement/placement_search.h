// A placement that knows its price while ranks are swapped: the local search of place_ranks.h.
#pragma once

#include <piper/placement/placement_price.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::placement {

class PlacementSearch {
 public:
  // Slots and groups outlive it.
  PlacementSearch(const Slots& slots, std::span<const RankGroup> groups, RankSlots placement);

  // Swaps ranks of two slots, and the contents of two nodes of equal size, as long as one gains;
  // `max_swaps`: to be tried. Returns how many were.
  int64_t improve(int64_t max_swaps);

  // Seconds that the swap of two slots' ranks (either may be empty) would take off the sum over
  // groups.
  double gain(int32_t slot_a, int32_t slot_b) const;
  void swap(int32_t slot_a, int32_t slot_b);
  const RankSlots& placement() const { return slot_of_; }

 private:
  bool improve_rank(int32_t slot, int64_t& left);
  bool improve_nodes(int64_t& left);
  double swap_nodes(std::span<const int32_t> a, std::span<const int32_t> b);
  bool could_gain(int32_t rank) const;
  double gain_of_move(int32_t rank, int32_t from, int32_t to, int32_t other) const;
  int64_t count(size_t group, size_t boundary, int32_t unit) const;
  int64_t num_units(size_t group, size_t boundary) const;
  void move(int32_t rank, int32_t from, int32_t to);
  bool is_counted(size_t group) const { return first_count_[group] >= 0; }
  int32_t& counted(size_t group, size_t boundary, int32_t unit);

  const Slots& slots_;
  std::span<const RankGroup> groups_;
  RankSlots slot_of_;
  std::vector<int32_t> rank_at_;                 // by slot; -1: empty
  std::vector<std::vector<int32_t>> groups_of_;  // by rank
  std::vector<std::vector<int32_t>> slots_of_node_;
  std::vector<double> least_;  // least_group_seconds()
  // Members in each unit and the units that have some, of groups too large to be counted each time.
  std::vector<int64_t> first_count_;  // by group; -1: small
  std::vector<int64_t> first_unit_;   // by boundary, in a group's counts
  std::vector<int32_t> counts_;
  std::vector<int32_t> num_units_;  // [group x boundaries + boundary]
};

}  // namespace piper::placement
