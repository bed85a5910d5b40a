// The copies of one layer's experts while a search chooses them: homes stay, every rank has as many
// slots, an expert's rows are shared evenly by its home and its copies.
//
// Rows are counted in units, a power of two of them, so that all sums and squares are integers and
// every rank of a run comes to the same choice.
#pragma once

#include <piper/balance/rank_load.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace piper::balance {

// How even ranks are, less is better: the busiest rank's units, then the sum of squares.
struct Unevenness {
  int64_t busiest = 0, squares = 0;
  auto operator<=>(const Unevenness&) const = default;
};

class CopySlots {
 public:
  // No slot holds anything. Copies that `homes` has are left out. Requires what share_hot() does.
  CopySlots(const ExpertPlacement& homes, const Loads& loads, int64_t slots_per_rank);

  size_t num_ranks() const { return num_ranks_; }
  size_t num_experts() const { return units_.size(); }
  size_t slots_per_rank() const { return slots_; }
  size_t num_free() const { return num_free_; }

  size_t home(size_t expert) const { return holders_[expert].front(); }
  int64_t units(size_t expert) const { return units_[expert]; }  // of all its copies together
  const std::vector<int64_t>& rank_units() const { return rank_units_; }
  bool has_room(size_t rank) const { return copies_[rank].size() < slots_; }
  bool holds(size_t rank, size_t expert) const { return holds_[rank * units_.size() + expert]; }
  const std::vector<int32_t>& copies(size_t rank) const { return copies_[rank]; }
  Unevenness unevenness() const;

  // By how much the squares grow if the rank, which does not hold the expert, gets a copy.
  int64_t growth(size_t expert, size_t rank) const;

  void add(size_t expert, size_t rank);
  void replace(size_t rank, size_t slot, size_t expert);

  // What would become of the ranks if a slot held another expert, or two slots exchanged theirs.
  // `by_units`: all ranks, the busiest first.
  Unevenness if_replaced(size_t rank, size_t slot, size_t expert,
                         const std::vector<size_t>& by_units);
  Unevenness if_exchanged(size_t rank, size_t slot, size_t other_rank, size_t other_slot,
                          const std::vector<size_t>& by_units);

  ExpertPlacement placement() const { return homes_.with_copies(copies_); }

 private:
  int64_t of_each(size_t expert, int64_t num_holders) const { return units_[expert] / num_holders; }
  int64_t of_each(size_t expert) const { return of_each(expert, std::ssize(holders_[expert])); }
  void spread(size_t expert, int64_t sign);
  void changes(size_t rank, int64_t by);
  Unevenness after_changes(const std::vector<size_t>& by_units);

  ExpertPlacement homes_;
  size_t num_ranks_, slots_, num_free_;
  std::vector<int64_t> units_;                // by expert
  std::vector<std::vector<int32_t>> copies_;  // by rank
  std::vector<std::vector<size_t>> holders_;  // by expert, home first
  std::vector<char> holds_;                   // by rank and expert
  std::vector<int64_t> rank_units_;
  int64_t squares_ = 0;
  // if_replaced() and if_exchanged() note here how many units each rank would gain.
  std::vector<int64_t> change_;  // by rank
  std::vector<char> is_changed_;
  std::vector<size_t> changed_;
};

}  // namespace piper::balance
